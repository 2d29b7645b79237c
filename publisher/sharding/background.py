"""Publishing from many ranks beside training: every rank hears of a failure at the same call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from skerry.publisher.background import BackgroundPublisher, Backlog, BacklogPolicy
from skerry.publisher.sharding.fabric import Fabric
from skerry.publisher.sharding.moves import Leaves
from skerry.publisher.sharding.plan import TensorPart
from skerry.publisher.sharding.publisher import ShardedPublisher
from skerry.publisher.sharding.report import ShardedReport


def beside_training(
    publisher: ShardedPublisher,
    front: Fabric,
    parts: Callable[[], Sequence[TensorPart]],
    *,
    waiting: int = 1,
    published: Callable[[ShardedReport], None] = lambda report: None,
) -> BackgroundPublisher[Leaves, ShardedReport]:
    """Return what publishes `parts` of a step while training goes on.

    `front` joins the same ranks as the publisher's fabric and is another one: copies are exchanged
    there while an earlier version is agreed upon.  When the line is full the ranks wait: giving up
    steps, each rank would give up others.
    """
    return BackgroundPublisher(
        lambda taken, step: publisher.publish_taken(taken, step=step),
        lambda: publisher.take(parts(), front),
        policy=BacklogPolicy(when_full=Backlog.WAIT, waiting=waiting),
        published=published,
        meet=lambda failed: _oldest(front.all_gather(failed)),
    )


def _oldest(steps: Iterable[int | None]) -> int | None:
    return min((step for step in steps if step is not None), default=None)
