"""A full version from many ranks: leaves go to the committer one by one, in the order of files."""

from __future__ import annotations

from collections.abc import Iterator

from skerry.bulletin.records import Full
from skerry.bulletin.writer import BulletinWriter
from skerry.codec.digest import Bytes, leaf_count
from skerry.codec.pack import leaf_range
from skerry.publisher.sharding.fabric import Fabric
from skerry.publisher.sharding.moves import Leaves
from skerry.publisher.sharding.plan import Leaf, ShardPlan


def send_leaves(plan: ShardPlan, fabric: Fabric, leaves: Leaves, committer: int) -> None:
    """Send this rank's leaves to the committer, who asks for them by `put_full`."""
    for shard in plan.layout.shards:
        for leaf, _ in _leaves_of(plan, shard.name):
            if plan.owners[leaf] == fabric.rank:
                fabric.send(leaves[leaf], committer)


def put_full(plan: ShardPlan, fabric: Fabric, leaves: Leaves, writer: BulletinWriter) -> Full:
    """Upload the full form, on the committer; one leaf of the others is in memory at a time.

    Raises StoreError, after all leaves have come: the others must not be left sending.
    """
    arriving = _arriving(plan, fabric, leaves)

    def files() -> Iterator[tuple[str, Iterator[bytes]]]:
        for shard in plan.layout.shards:
            count = sum(1 for _ in _leaves_of(plan, shard.name))
            yield shard.name, _file(shard.header, arriving, count)
        for name in sorted(plan.arranged.contents):
            yield name, iter([plan.arranged.contents[name]])

    try:
        return writer.put_full(files())
    finally:
        for _ in arriving:
            pass


def _file(header: bytes, arriving: Iterator[Bytes], count: int) -> Iterator[bytes]:
    yield header
    for _ in range(count):
        yield next(arriving).tobytes()


def _arriving(plan: ShardPlan, fabric: Fabric, leaves: Leaves) -> Iterator[Bytes]:
    for shard in plan.layout.shards:
        for leaf, nbytes in _leaves_of(plan, shard.name):
            owner = plan.owners[leaf]
            yield leaves[leaf] if owner == fabric.rank else fabric.receive(nbytes, owner)


def _leaves_of(plan: ShardPlan, shard: str) -> Iterator[tuple[Leaf, int]]:
    """Yield the leaves of a file, with their sizes, as they lie in it."""
    numbers = {spec.name: number for number, spec in enumerate(plan.layout.tensors)}
    for name in plan.arranged.order[shard]:
        number = numbers[name]
        spec = plan.layout.tensors[number]
        for leaf in range(leaf_count(spec.nbytes)):
            start, stop = leaf_range(spec, leaf)
            yield (number, leaf), stop - start
