"""Islands by their own word: judged against the log, and none of them lost."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from skerry.bulletin import keys
from skerry.bulletin.errors import StoreUnavailable
from skerry.bulletin.inspection.islands import (
    SILENT_S,
    Look,
    State,
    arranged,
    counted,
    island_row,
)
from skerry.bulletin.inspection.lookout import LOOKS_KEPT, Lookout
from skerry.bulletin.inspection.view import View
from skerry.bulletin.records import Retire
from skerry.bulletin.status import IslandReport
from skerry.bulletin.stores.memory import MemoryStore
from tests.bulletin.faults import FaultyStore
from tests.bulletin.inspection.views import view_of
from tests.bulletin.log_builder import LogBuilder, digest
from tests.bulletin.random_logs import logs
from tests.bulletin.test_status import reports

NOW_MS = 1_000_000_000


def a_view() -> View:
    """Versions 0 to 6: 3 is abandoned, 1 retired."""
    log = LogBuilder.with_versions(4)
    for parent in (2, 4, 5):
        log.append(log.patch(parent=parent))
    log.append(Retire(versions=(1,), keys=(), grace_s=60))
    return view_of(log)


def test_a_version_that_came_after_the_look_makes_no_island_late() -> None:
    report = IslandReport(island="eu-1", version=4, time_ms=NOW_MS)
    then = Look(time_ms=NOW_MS, version=4, lag=0)
    row = island_row(a_view(), report, (then,), now_ms=NOW_MS)
    assert (row.state, row.lag) == ("current", 0)


@pytest.mark.parametrize(
    ("changes", "state", "lag"),
    [
        ({"version": 6}, "current", 0),
        ({"version": 4}, "behind", 2),
        ({"version": None}, "behind", 6),
        ({"version": 3}, "stray", 3),
        ({"version": 1}, "stray", 4),
        ({"version": 99}, "stray", 6),
        ({"version": 6, "run": digest("another")}, "stray", 0),
        ({"version": 6, "error": "DiskFull: no room"}, "failing", 0),
        ({"version": 6, "phase": "stopped"}, "stopped", 0),
        ({"version": 6, "time_ms": NOW_MS - 1000 * int(SILENT_S) - 1}, "silent", 0),
        ({"version": 6, "time_ms": NOW_MS + 60_000}, "current", 0),
    ],
)
def test_an_island_is_what_the_log_makes_of_its_word(
    changes: dict[str, object], state: State, lag: int
) -> None:
    report = replace(IslandReport(island="eu-1", time_ms=NOW_MS), **changes)  # type: ignore[arg-type]
    row = island_row(a_view(), report, (), now_ms=NOW_MS)
    assert (row.state, row.lag) == (state, lag)


@given(logs(), reports)
def test_any_report_is_a_row_and_is_counted_once(log: LogBuilder, report: IslandReport) -> None:
    row = island_row(view_of(log), report, (), now_ms=NOW_MS)
    counts = counted([row])
    assert getattr(counts, row.state) == 1
    assert arranged([row]) == [row]


def test_those_that_need_somebody_come_first() -> None:
    view = a_view()
    held = {"a": 6, "b": 4, "c": 3, "d": 0}
    rows = [
        island_row(view, IslandReport(island=name, version=v, time_ms=NOW_MS), (), now_ms=NOW_MS)
        for name, v in held.items()
    ]
    assert [row.island for row in arranged(rows)] == ["c", "d", "b", "a"]


def test_every_status_is_an_island_or_is_refused_by_name() -> None:
    store = MemoryStore()
    for name in ("eu-1", "eu-2"):
        store.replace(keys.island(name), IslandReport(island=name).to_bytes())
    store.put("islands/junk.json", [b"{"])
    store.put("islands/large.json", [b" " * 200_000])
    found = Lookout(store, now=lambda: NOW_MS).look(a_view())
    assert sorted(found.reports) == ["eu-1", "eu-2"]
    assert [one.key for one in found.refused] == ["islands/junk.json", "islands/large.json"]


def test_looks_are_remembered_within_a_limit_and_forgotten_with_the_island() -> None:
    store, view = MemoryStore(), a_view()
    lookout = Lookout(store, now=lambda: NOW_MS)
    store.replace(keys.island("eu-1"), IslandReport(island="eu-1", version=4).to_bytes())
    for _ in range(LOOKS_KEPT + 5):
        found = lookout.look(view)
    assert [look.lag for look in found.looks["eu-1"]] == [2] * LOOKS_KEPT
    store.delete(keys.island("eu-1"))
    assert lookout.look(view).looks == {}


def test_a_store_that_fails_in_the_middle_makes_no_island_a_refused_one() -> None:
    store = MemoryStore()
    store.replace(keys.island("eu-1"), IslandReport(island="eu-1").to_bytes())

    def before(verb: str, key: str) -> None:
        if verb == "get":
            raise StoreUnavailable(key, "no answer")

    with pytest.raises(StoreUnavailable):
        Lookout(FaultyStore(store, before=before), now=lambda: NOW_MS).look(a_view())
