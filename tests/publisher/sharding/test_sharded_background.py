"""Ranks that publish beside training stay together, whatever fails, and at whichever rank."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from skerry.bulletin.errors import StoreUnavailable
from skerry.bulletin.stores import MemoryStore
from skerry.publisher import PublishFailed
from skerry.publisher.errors import PeerLost
from skerry.publisher.sharding import ShardedReport
from skerry.publisher.sharding.background import beside_training
from tests.bulletin.faults import FaultyStore
from tests.publisher.sharding.test_sharded import (
    assert_versions_are_whole,
    model,
    opened,
    shard,
    steps_of,
)
from tests.publisher.sharding.world import Killed, ThreadFabric, World, on_ranks

SIZE = 2


def train(
    fabric: ThreadFabric,
    back: World,
    store: FaultyStore,
    steps: int,
    published: Callable[[ShardedReport], None] = lambda report: None,
) -> list[tuple[int, int]]:
    """Publish every step; return (call, step that failed) for each failure that was raised."""
    told: list[tuple[int, int]] = []
    step = 0
    publisher = opened(ThreadFabric(back, fabric.rank, lambda: None), store)
    background = beside_training(
        publisher,
        fabric,
        lambda: shard(model(step), fabric.rank, fabric.size),
        published=published,
    )
    for step in range(steps):
        taken = False
        while not taken:
            try:
                background.publish(step)
                taken = True
            except PublishFailed as failure:
                if isinstance(failure.__cause__, PeerLost):
                    raise failure.__cause__ from None
                told.append((step, failure.step))
    while True:
        try:
            background.close()
        except PublishFailed as failure:
            told.append((steps, failure.step))
        else:
            return told


@pytest.mark.parametrize("failing", [{1}, {2}, {2, 3}, {5}, {1, 2, 3, 4, 5}])
def test_every_rank_hears_of_every_failure_at_the_same_call(
    failing: set[int], tmp_path: Path
) -> None:
    inner, back = MemoryStore(), World(SIZE)
    manifests = [0]

    def before(verb: str, key: str) -> None:
        if verb == "put" and key.startswith("manifests/"):
            manifests[0] += 1
            if manifests[0] - 1 in failing:  # one manifest a step
                raise StoreUnavailable(key, "is away")

    store = FaultyStore(inner, before=before)
    told = on_ranks(SIZE, lambda fabric: train(fabric, back, store, 6))
    assert told[0] == told[1]
    assert [step for _, step in told[0]] == sorted(failing)
    assert assert_versions_are_whole(inner, tmp_path) == sorted(set(range(6)) - failing)


def test_what_fails_on_one_rank_alone_is_raised_on_all() -> None:
    inner, back = MemoryStore(), World(SIZE)

    def published(report: ShardedReport) -> None:
        if report.step == 2:
            raise OSError("the log of this rank is full")

    def work(fabric: ThreadFabric) -> list[tuple[int, int]]:
        told = published if fabric.rank == 1 else lambda report: None
        return train(fabric, back, FaultyStore(inner), 6, told)

    told = on_ranks(SIZE, work)
    assert told[0] == told[1]
    assert [step for _, step in told[0]] == [2]
    assert steps_of(inner) == list(range(6))


def test_a_rank_that_dies_while_a_version_is_on_its_way_ends_the_others_training() -> None:
    inner, back = MemoryStore(), World(SIZE)
    calls = [0]

    def before(rank: int) -> None:
        if rank == 1:
            calls[0] += 1
            if calls[0] == 6:
                back.lose()
                raise Killed

    store = FaultyStore(inner)
    results = on_ranks(SIZE, lambda fabric: train(fabric, back, store, 6), before)
    assert isinstance(results[1], Killed)
    assert isinstance(results[0], PeerLost)
    assert steps_of(inner) == list(range(len(steps_of(inner))))
