"""The log's benchmark: it reads what it made, and counts what it says."""

from __future__ import annotations

import pytest

from skerry.benchmarks import bench_log
from skerry.bulletin import keys
from skerry.bulletin.stores.memory import MemoryStore


@pytest.fixture(scope="module")
def run() -> MemoryStore:
    return bench_log.make_log(300)


def read(run: MemoryStore, **parts: bool) -> bench_log.FreshRead:
    has = {"hint": True, "checkpoints": True, "lists": True, **parts}
    return bench_log.read_afresh(run, round_trip_s=0.001, **has)


def test_every_reader_reads_the_whole_log_whatever_it_lacks(run: MemoryStore) -> None:
    for hint in (True, False):
        for checkpoints in (True, False):
            for lists in (True, False):
                parts = {"hint": hint, "checkpoints": checkpoints, "lists": lists}
                assert read(run, **parts).records == 300


def test_a_checkpoint_saves_requests_and_a_missing_one_costs_them(run: MemoryStore) -> None:
    assert read(run).requests < 60
    assert read(run, checkpoints=False).requests > 300
    assert read(run, hint=False).requests < 80
    assert read(run, hint=False, lists=False).requests > 300


def test_an_idle_look_is_one_request_without_a_byte() -> None:
    run = bench_log.publish_some(versions=3, words=10_000)
    idle, version = bench_log.follow(run)
    assert (idle.requests, idle.bytes_up, idle.bytes_down) == ({"get": 1}, 0, 0)
    assert version.requests == {"get": 3}  # the record, the free slot after it, the pack
    assert run.get(keys.log(3), limit_bytes=1 << 20)
