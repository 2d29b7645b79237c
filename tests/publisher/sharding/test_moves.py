"""Copies are copies; their memory comes back once they are gone, and never before."""

from __future__ import annotations

import numpy as np

from skerry.bulletin.stores import MemoryStore
from skerry.codec.digest import Bytes
from skerry.publisher.sharding import Alone, TensorPart
from skerry.publisher.sharding.buffers import Buffers
from skerry.publisher.sharding.moves import Leaves, Moves
from skerry.publisher.sharding.plan import plan_shards
from tests.publisher.sharding.test_sharded import model, opened, shard
from tests.publisher.sharding.world import ThreadFabric, on_ranks


def part(data: Bytes, start: int = 0, nbytes: int | None = None) -> TensorPart:
    return TensorPart(name="w", dtype="U8", shape=(nbytes or data.size,), start=start, data=data)


def address(data: Bytes) -> int:
    return int(data.__array_interface__["data"][0])


def test_what_is_taken_stays_as_it_was_while_the_weights_go_on() -> None:
    weights = np.arange(100, dtype=np.uint8)
    parts = [part(weights)]
    moves = Moves(plan_shards([[p.held for p in parts]]), Alone(), threads=2)
    taken = []
    for _ in range(4):
        taken.append((weights.copy(), moves.take(Alone(), parts)[0, 0]))
        weights += 1
    for expected, leaf in taken:
        assert np.array_equal(leaf, expected)


def test_a_buffer_is_used_again_when_its_last_view_is_gone() -> None:
    buffers = Buffers(1000)
    first = buffers.take()
    where, view = address(first), first[10:20].view(np.uint16)
    del first
    second = buffers.take()
    assert address(second) != where  # a view is left
    del view
    assert address(buffers.take()) == where
    assert second.size == 1000


def test_bytes_of_a_leaf_that_ranks_share_are_put_together_at_the_lowest() -> None:
    def work(fabric: ThreadFabric) -> Leaves:
        mine = [part(np.full(10, fabric.rank, np.uint8), 10 * fabric.rank, 30)]
        held = [p.held for rank in fabric.all_gather(mine) for p in rank]
        moves = Moves(plan_shards([[h] for h in held]), fabric, threads=1)
        return [moves.take(fabric, mine) for _ in range(2)][1]

    first, *others = on_ranks(3, work)
    assert first[0, 0].tolist() == [0] * 10 + [1] * 10 + [2] * 10
    assert others == [{}, {}]


def test_the_copies_of_a_run_come_and_go_in_memory_for_two() -> None:
    def work(fabric: ThreadFabric) -> set[int]:
        publisher, places = opened(fabric, MemoryStore()), set[int]()
        for step in range(6):
            taken = publisher.take(shard(model(step), fabric.rank, fabric.size))
            places.add(min(map(address, taken.values())))
            publisher.publish_taken(taken, step=step)
            del taken
        return places

    [places] = on_ranks(1, work)
    assert len(places) == 2  # the parent's, and that of what is being published
