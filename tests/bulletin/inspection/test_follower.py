"""The follower: rare looks while nobody asks, no look at a store that fails without a pause."""

from __future__ import annotations

import threading
import time
from functools import partial

import pytest

from skerry.bulletin import keys
from skerry.bulletin.errors import StoreUnavailable
from skerry.bulletin.inspection.follower import Follower
from skerry.bulletin.inspection.pace import Pace
from skerry.bulletin.inspection.workers import Busy, Workers
from skerry.bulletin.status import IslandReport
from skerry.bulletin.stores.memory import MemoryStore
from skerry.bulletin.stores.metered import Metered
from tests.bulletin.faults import FaultyStore
from tests.bulletin.log_builder import LogBuilder


def a_store(versions: int = 3, islands: int = 5) -> MemoryStore:
    store = MemoryStore()
    for seq, data in enumerate(LogBuilder.with_versions(versions).slots):
        store.put_if_absent(keys.log(seq), data)
    for number in range(islands):
        name = f"island-{number}"
        store.replace(keys.island(name), IslandReport(island=name, version=0).to_bytes())
    return store


class Clock:
    def __init__(self) -> None:
        self.at = 0.0

    def __call__(self) -> float:
        return self.at


def run(follower: Follower, clock: Clock, seconds: float, *, watched: bool = False) -> None:
    end = clock.at + seconds
    while clock.at < end:
        if watched:
            follower.attend()
        clock.at += follower.look()


def test_an_idle_hour_costs_a_look_a_minute_and_the_islands_every_five() -> None:
    clock, store = Clock(), Metered(a_store())
    follower = Follower(store, clock=clock, now=lambda: 0)
    run(follower, clock, follower.pace.attention_s)
    before = store.usage()
    run(follower, clock, 3600)
    asked = (store.usage() - before).requests
    assert asked == {"get": 60 + 12 * 5, "list_after": 12}


def test_somebody_who_looks_is_shown_news_at_the_watched_pace() -> None:
    clock, store = Clock(), Metered(a_store())
    follower = Follower(store, clock=clock, now=lambda: 0)
    run(follower, clock, 600, watched=True)
    before = store.usage()
    run(follower, clock, 60, watched=True)
    asked = (store.usage() - before).requests
    assert asked == {"get": 30 + 6 * 5, "list_after": 6}


def test_the_first_who_asks_after_a_pause_makes_the_next_look_due_at_once() -> None:
    clock, store = Clock(), a_store()
    follower = Follower(store, clock=clock, now=lambda: 0)
    run(follower, clock, 3600)
    clock.at += 1.0
    assert follower.look() > 1.0
    follower.attend()
    assert follower.look() <= follower.pace.log_watched_s


def test_a_store_that_fails_is_asked_ever_more_rarely() -> None:
    asked = []

    def before(verb: str, key: str) -> None:
        asked.append(key)
        raise StoreUnavailable(key, "no answer")

    clock = Clock()
    follower = Follower(FaultyStore(a_store(), before=before), clock=clock, now=lambda: 0)
    run(follower, clock, 3600, watched=True)
    assert len(asked) < 70
    assert follower.store_state.report().state == "failing"


def test_what_a_failed_look_still_wanted_takes_no_place_of_the_next() -> None:
    hiccup = True

    def before(verb: str, key: str) -> None:
        if hiccup and key.startswith(keys.ISLAND_PREFIX) and verb == "get":
            time.sleep(0.02)
            raise StoreUnavailable(key, "503")

    store = FaultyStore(a_store(islands=3000), before=before)
    follower = Follower(store, now=lambda: 0)
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            follower.look_once()
        time.sleep(0.3)  # those under way
    hiccup = False
    follower.look_once()
    assert len(follower.snapshot.islands.reports) == 3000


@pytest.mark.parametrize("error", [Busy("8 calls run"), ValueError("a bug"), OSError("no")])
def test_whatever_a_look_raises_is_told_and_tried_again(error: Exception) -> None:
    down, clock = True, Clock()

    def before(verb: str, key: str) -> None:
        if down:
            raise error

    follower = Follower(FaultyStore(a_store(), before=before), clock=clock, now=lambda: 0)
    run(follower, clock, 10, watched=True)
    report = follower.store_state.report()
    assert (report.state, report.problem and report.problem.kind) == (
        "failing",
        type(error).__name__,
    )
    down = False
    run(follower, clock, 60, watched=True)
    assert follower.store_state.report().state == "ok"


def test_records_before_the_one_at_fault_are_shown() -> None:
    store = a_store(versions=3)
    store.put(keys.log(4), [b"{}"])
    follower = Follower(store, now=lambda: 0)
    follower.look()
    assert follower.snapshot.view.newest == 2
    report = follower.store_state.report()
    assert report.state == "refused"
    assert report.problem is not None
    assert report.problem.kind == "RecordInvalid"


def test_listeners_are_told_of_changes_and_of_nothing_else() -> None:
    clock, store, told = Clock(), a_store(versions=2, islands=0), []
    follower = Follower(store, clock=clock, now=lambda: 0)
    end = follower.listen(lambda: told.append(follower.snapshot.view.newest))
    run(follower, clock, 10, watched=True)
    assert told == [1]
    store.put_if_absent(keys.log(3), LogBuilder.with_versions(3).slots[3])
    run(follower, clock, 10, watched=True)
    assert told == [1, 2]
    end()
    assert follower.listeners == 0


def test_a_pace_that_is_quicker_for_nobody_is_refused() -> None:
    with pytest.raises(ValueError, match="no rarer"):
        Pace(log_idle_s=1.0)
    with pytest.raises(ValueError, match="above 0"):
        Pace(log_watched_s=0)


def test_workers_refuse_what_would_wait_too_long_and_go_on_afterwards() -> None:
    workers, gate = Workers("test", threads=2, waiting=2), threading.Event()
    stuck = [workers.submit(gate.wait) for _ in range(2)]
    while not all(future.running() for future in stuck):
        pass
    waiting = [workers.submit(lambda: 1) for _ in range(2)]
    with pytest.raises(Busy, match="2 calls run and 2 wait"):
        workers.submit(lambda: 1)
    gate.set()
    assert [future.result(60) for future in waiting] == [1, 1]


def test_workers_take_a_call_as_soon_as_another_has_ended() -> None:
    workers = Workers("test", threads=1, waiting=0)
    assert [workers.submit(lambda: 1).result(60) for _ in range(2000)] == [1] * 2000


def test_a_second_thread_starts_even_while_the_first_takes_its_call() -> None:
    for _ in range(10):
        workers, both = Workers("test", threads=2, waiting=2), threading.Barrier(2)
        calls = [workers.submit(partial(both.wait, 60)) for _ in range(2)]
        assert sorted(call.result(60) for call in calls) == [0, 1]


def test_an_error_of_a_call_is_its_own() -> None:
    workers = Workers("test", threads=1, waiting=2)

    def fail() -> None:
        raise KeyError("gone")

    with pytest.raises(KeyError, match="gone"):
        workers.submit(fail).result(60)
    assert workers.submit(lambda: 2).result(60) == 2
