"""An island's status: one spelling, strict limits, and no more power than to put off a deletion."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.bulletin import keys
from skerry.bulletin.errors import ListUnsupported, RecordInvalid
from skerry.bulletin.records import Retire
from skerry.bulletin.status import MAX_LEGS, IslandReport, Lease, read_reports
from skerry.bulletin.stores import MemoryStore
from skerry.bulletin.sweep import Leased, leased_by
from tests.bulletin.log_builder import LogBuilder
from tests.bulletin.strategies import digests, numbers

KEY = keys.island("eu-1")

leases = st.builds(
    Lease,
    legs=st.lists(st.tuples(st.none() | numbers, numbers), min_size=1, max_size=5).map(tuple),
    until_ms=numbers,
)
reports = st.builds(
    IslandReport,
    island=st.just("eu-1"),
    run=st.none() | digests,
    version=st.none() | numbers,
    target=st.none() | numbers,
    newest=st.none() | numbers,
    lag=numbers,
    phase=st.sampled_from(["idle", "fetching", "stopped"]),
    error=st.none() | st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=500),
    engines=st.dictionaries(st.from_regex(r"[a-z0-9]{1,9}", fullmatch=True), st.none() | numbers),
    nbytes=numbers,
    total_bytes=numbers,
    time_ms=numbers,
    reading=st.none() | leases,
)


@given(reports)
def test_a_report_survives_the_store(report: IslandReport) -> None:
    assert IslandReport.from_bytes(report.to_bytes(), what=KEY) == report


@given(st.binary(max_size=300) | reports.map(lambda r: r.to_bytes()[:-1]))
def test_any_bytes_are_a_report_or_are_refused(data: bytes) -> None:
    with pytest.raises(RecordInvalid):
        IslandReport.from_bytes(data, what=KEY)


@pytest.mark.parametrize(
    "changes",
    [
        {"island": "eu-2"},
        {"island": "../log/0"},
        {"version": -1},
        {"version": True},
        {"version": 2**63},
        {"phase": "Idle\n"},
        {"error": "x" * 501},
        {"error": "\ud800"},
        {"error": "\x1b[2J"},
        {"error": "two\nlines"},
        {"error": "\x9b2J"},
        {"engines": {"a b": 1}},
        {"engines": {str(n): None for n in range(257)}},
        {"reading": {"legs": [], "until": 1}},
        {"reading": {"legs": [[None, 1]] * (MAX_LEGS + 1), "until": 1}},
        {"reading": {"legs": [[1, None]], "until": 1}},
        {"reading": {"legs": [[1]], "until": 1}},
        {"reading": {"legs": [[1, 2]], "until": 1.5}},
        {"more": 1},
        {"error": "y" * 200_000},
    ],
)
def test_a_report_beyond_its_limits_is_refused(changes: dict[str, Any]) -> None:
    fields = {**json.loads(IslandReport(island="eu-1").to_bytes()), **changes}
    with pytest.raises(RecordInvalid):
        IslandReport.from_bytes(json.dumps(fields).encode(), what=KEY)


def test_a_long_error_is_cut_by_who_writes_it() -> None:
    report = IslandReport(island="eu-1", error="e" * 900)
    assert IslandReport.from_bytes(report.to_bytes(), what=KEY).error == "e" * 500


@pytest.mark.parametrize("unfit", ["\n", "\x1b", "\x9b", "\ud800", "\0"])
def test_an_error_of_whatever_characters_is_told_as_text(unfit: str) -> None:
    report = IslandReport(island="eu-1", error=f"one{unfit}two")
    assert IslandReport.from_bytes(report.to_bytes(), what=KEY).error == "one two"


def test_junk_beside_sound_reports_is_passed_over() -> None:
    store = MemoryStore()
    store.replace("islands/a.json", b"{")
    store.replace("islands/b/c.json", IslandReport(island="b").to_bytes())
    store.replace("islands/z.json", b"x" * 10**6)
    store.replace(KEY, IslandReport(island="eu-1", version=3).to_bytes())
    assert list(read_reports(store)) == [IslandReport(island="eu-1", version=3)]


def test_a_store_without_a_list_shows_no_reports() -> None:
    class NoList(MemoryStore):
        def list_after(self, prefix: str, after: str = "") -> Any:
            raise ListUnsupported(prefix)

    assert list(read_reports(NoList())) == []


def test_a_live_lease_covers_full_patch_and_skip_of_its_legs_and_no_other() -> None:
    log = LogBuilder.with_versions(6)
    log.append(log.skip(2, 4))
    log.append(Retire(versions=(0, 1, 2, 3), keys=(), grace_s=1))
    state = log.state
    report = IslandReport(
        island="eu-1", reading=Lease(legs=((None, 0), (0, 1), (2, 4), (1, 5), (7, 99)), until_ms=10)
    )
    full = state.commits[0].full
    assert full is not None
    names = {full.prefix, state.commits[1].packs[0].key, state.skips[0].packs[0].key}
    found = leased_by(state, [report], now_ms=9)
    assert found == Leased(keys=frozenset(names), versions=frozenset({0, 1, 2, 4, 5, 7, 99}))
    assert leased_by(state, [report], now_ms=10) == Leased()
    assert leased_by(state, [replace(report, reading=None)], now_ms=9) == Leased()
