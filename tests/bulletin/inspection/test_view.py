"""A view is all that a log says, whichever way its records came."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.bulletin.errors import VersionUnknown
from skerry.bulletin.inspection.rows import (
    record_page,
    share,
    standing,
    version_page,
    version_row,
)
from skerry.bulletin.inspection.timeline import timeline
from skerry.bulletin.inspection.view import View
from skerry.island_agent.plan import lag
from tests.bulletin.inspection.views import view_of
from tests.bulletin.log_builder import LogBuilder
from tests.bulletin.random_logs import logs


@given(logs(), st.integers(0, 20))
def test_records_one_by_one_or_at_once_make_the_same_view(log: LogBuilder, cut: int) -> None:
    view = View().after(log.records[:cut], log.states[min(cut, len(log.records))])
    view = view.after(log.records[cut:], log.state)
    whole = view_of(log)
    assert record_page(view, limit=100) == record_page(whole, limit=100)
    assert version_page(view, limit=100) == version_page(whole, limit=100)


@given(logs(), st.integers(1, 5), st.booleans())
def test_pages_have_every_version_once_and_in_order(
    log: LogBuilder, limit: int, oldest_first: bool
) -> None:
    view, seen, at = view_of(log), list[int](), None
    while True:
        page = version_page(
            view,
            limit=limit,
            oldest_first=oldest_first,
            after=at if oldest_first else None,
            before=None if oldest_first else at,
        )
        assert len(page.versions) <= limit
        seen += [row.version for row in page.versions]
        at = page.following
        if at is None:
            break
    assert seen == sorted(log.state.commits, reverse=not oldest_first)


@given(logs(), st.integers(1, 5))
def test_pages_have_every_record_once_and_in_order(log: LogBuilder, limit: int) -> None:
    view, seen, at = view_of(log), list[int](), None
    while True:
        page = record_page(view, limit=limit, after=at)
        seen += [row.seq for row in page.records]
        at = page.following
        if at is None:
            break
    assert seen == list(range(len(log.records)))


@given(logs(), st.sampled_from(["live", "abandoned", "retired"]))
def test_a_page_of_one_state_has_those_and_no_others(log: LogBuilder, state: str) -> None:
    view = view_of(log)
    page = version_page(view, limit=100, state=state)  # type: ignore[arg-type]
    expected = [v for v in sorted(log.state.commits, reverse=True) if standing(view, v) == state]
    assert [row.version for row in page.versions] == expected


@given(logs())
def test_rows_say_what_records_say(log: LogBuilder) -> None:
    view = view_of(log)
    for version, commit in log.state.commits.items():
        row, record = version_row(view, version), view.seen(version).record
        assert record.body == commit
        assert (row.seq, row.time_ms) == (record.seq, record.time)
        assert (row.changed, row.elements) == (commit.changed, commit.elements)
        assert row.record_bytes == len(log.slots[record.seq])
        assert row.signed == (log.signer is not None)
        if commit.base is not None:
            assert row.patch_bytes == sum(pack.size for pack in commit.packs)


@given(logs())
def test_a_record_is_shown_with_the_key_that_verified_it(log: LogBuilder) -> None:
    view = view_of(log)
    for seen in view.records:
        if seen.record.signature is None:
            assert seen.key is None
        else:
            before = log.states[seen.record.seq].key
            expected = seen.record.body.key if before is None else before  # type: ignore[union-attr]
            assert seen.key == expected.hex  # type: ignore[union-attr]


@given(logs())
def test_the_lag_is_the_one_that_agents_count_and_what_is_left_behind_lacks_its_line_alone(
    log: LogBuilder,
) -> None:
    view = view_of(log)
    for version in (None, *log.state.commits):
        if version not in log.state.abandoned:
            assert view.lag(version) == lag(log.state, version)
        else:
            ancestors = set(line_of(log, version))
            assert view.lag(version) == len(set(view.line) - ancestors)
    assert view.lag(10**6) == len(view.line)


def line_of(log: LogBuilder, version: int | None) -> Iterator[int]:
    while version is not None:
        yield version
        version = log.state.commits[version].parent


@given(logs(), st.none() | st.integers(0, 15), st.none() | st.integers(0, 15), st.integers(1, 9))
def test_a_timeline_is_the_rows_of_its_versions(
    log: LogBuilder, first: int | None, last: int | None, limit: int
) -> None:
    view = view_of(log)
    line = timeline(view, limit=limit, first=first, last=last)
    versions = [v for v in log.state.commits if (first or 0) <= v]
    versions = [v for v in versions if last is None or v <= last][-limit:]
    assert line.version == versions
    rows = [version_row(view, version) for version in versions]
    assert line.share == [row.share for row in rows]
    assert line.patch_bytes == [row.patch_bytes for row in rows]
    assert line.state == [row.state for row in rows]


def test_a_size_that_no_record_tells_is_the_nearest_ancestors_and_marked() -> None:
    log = LogBuilder.with_versions(2)
    log.append(log.patch(parent=1, layout=log.state.commits[0].manifest))
    view = view_of(log)
    assert view.full_bytes(view.commit(1)) == (1000, True)
    assert view.full_bytes(view.commit(2)) == (1000, False)


def test_the_share_is_over_all_elements() -> None:
    """Case M-2: 64 of 524,352, and not of the tensors that changed."""
    assert share(64, 524_352) == pytest.approx(1.2205e-4, rel=1e-4)
    assert share(0, 0) == 0.0
    assert share(None, 524_352) is None


def test_a_version_that_is_not_there_is_an_error() -> None:
    with pytest.raises(VersionUnknown):
        version_row(view_of(LogBuilder.with_versions(2)), 2)
