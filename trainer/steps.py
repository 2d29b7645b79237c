"""Every optimizer step of a trainer as a version: what all integrations do, on every rank alike."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import torch.distributed as dist

from skerry.bulletin import stores
from skerry.bulletin.signing import Signer
from skerry.publisher import PublisherConfig
from skerry.publisher.background import BackgroundPublisher
from skerry.publisher.errors import PublishFailed, RankFailed
from skerry.publisher.sharding import (
    Alone,
    Fabric,
    ShardedPublisher,
    ShardedReport,
    TensorPart,
    beside_training,
)
from skerry.publisher.sharding.moves import Leaves
from skerry.publisher.threads import usable_cpus
from skerry.trainer.fabric import TorchFabric
from skerry.trainer.parts import Shard, serve_shards
from skerry.trainer.served import RuleSet

logger = logging.getLogger(__name__)


class OnFailure(StrEnum):
    """What a step does when it hears that a version could not be published.

    STOP: it raises that error, which ends the training.  LOG: it logs the error; the next version
    holds what the lost one had.
    """

    STOP = "stop"
    LOG = "log"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSettings:
    """Where versions go, and how.

    `signing_key` is a key file, which rank 0 alone reads; without one the run has no key.
    `background`: training goes on while a version is encoded and uploaded.
    """

    bulletin: str
    signing_key: Path | None = None
    background: bool = True
    on_failure: OnFailure = OnFailure.STOP
    writer: str = "trainer"


class StepPublisher:
    """`start` once, before the first step, then `publish` after each.

    Every rank makes the same calls.
    """

    def __init__(
        self,
        settings: StepSettings,
        rules: RuleSet,
        shards: Callable[[], Iterable[Shard]],
        side_files: Mapping[str, bytes],
    ) -> None:
        """`shards` returns what this rank holds of the weights at the time."""
        self._settings = settings
        self._rules = rules
        self._shards = shards
        self._side_files = side_files
        self._fabric = _fabric()
        self._publisher: ShardedPublisher | None = None
        self._beside: BackgroundPublisher[Leaves, ShardedReport] | None = None

    @property
    def started(self) -> bool:
        return self._publisher is not None

    def start(self, step: int) -> None:
        """Go on from the weights after a step: 0, or that of a checkpoint.

        If these are not those of the version that the run has of this step, or of the last one
        before it, they become a version at once.  Raises RankFailed, PeerLost.
        """
        parts = self._parts(self._fabric)
        publisher = ShardedPublisher.open(
            self._fabric,
            stores.open_store(self._settings.bulletin),
            parts,
            signer=self._signer(),
            config=PublisherConfig(writer=self._settings.writer, threads=_threads()),
            side_files=self._side_files,
            recipe=self._rules.recipe(),
        )
        if not publisher.resume(step, parts):
            publisher.publish(parts, step=step)
        if self._settings.background:
            front = _fabric()
            self._beside = beside_training(publisher, front, lambda: self._parts(front))
        self._publisher = publisher

    def publish(self, step: int) -> None:
        """Make a version of the weights after a step, which may change once this returns.

        Raises PublishFailed or RankFailed, on all ranks alike, where a failure is to stop training;
        PeerLost when a rank is gone.
        """
        beside, publisher = self._beside, self._publisher
        if publisher is None:
            raise ValueError("not started")
        if beside is not None:
            self._tolerant(lambda: beside.publish(step))
        else:
            self._tolerant(lambda: publisher.publish(self._parts(self._fabric), step=step))

    def flush(self) -> None:
        """Wait until every step is a version.  Raises as `publish` does."""
        if self._beside is not None:
            self._tolerant(self._beside.flush)

    def close(self) -> None:
        """Wait as `flush` does; nothing is published any more.  Raises as `publish` does."""
        if self._beside is not None:
            self._tolerant(self._beside.close)

    def _parts(self, fabric: Fabric) -> list[TensorPart]:
        return serve_shards(self._rules, self._shards(), fabric)

    def _signer(self) -> Signer | None:
        key = self._settings.signing_key
        return None if key is None or self._fabric.rank != 0 else Signer.load(key)

    def _tolerant(self, work: Callable[[], object]) -> None:
        """Do something; do it again after a step's failure that it raised and that is tolerated."""
        while True:
            try:
                work()
            except (PublishFailed, RankFailed) as error:
                if self._settings.on_failure is OnFailure.STOP:
                    raise
                logger.error("%s", error)
                if isinstance(error, PublishFailed):  # of an older step
                    continue
            return


def _fabric() -> Fabric:
    return TorchFabric.of_all() if dist.is_initialized() else Alone()


def _threads() -> int:
    """Return how many threads one rank may use: the ranks of a host share its CPUs."""
    return max(1, usable_cpus() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
