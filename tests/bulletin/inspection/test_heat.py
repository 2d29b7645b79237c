"""Which versions a map has: few, spread over all, and the same ones when another comes."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from skerry.bulletin.inspection.heat import sampled
from skerry.bulletin.inspection.view import View
from tests.bulletin.inspection.views import view_of
from tests.bulletin.log_builder import LogBuilder
from tests.bulletin.random_logs import logs

LONG = view_of(LogBuilder.with_versions(300))


@given(logs(), st.integers(1, 20), st.data())
def test_there_are_at_most_so_many_the_last_among_them_and_none_that_is_retired(
    log: LogBuilder, columns: int, data: st.DataObject
) -> None:
    view = view_of(log)
    if view.newest is None:
        return
    last = data.draw(st.integers(0, view.newest))
    first = data.draw(st.integers(0, last))
    found = sampled(view, first, last, columns)
    live = [v for v in range(first, last + 1) if v not in view.state.retired]
    assert 1 <= len(found) <= columns
    assert found == sorted(set(found))
    assert set(found) <= set(live or range(first, last + 1))
    assert found[-1] == max(live, default=last)


@settings(max_examples=50)
@given(st.integers(1, 298), st.integers(2, 64))
def test_a_version_more_changes_few_of_them(last: int, columns: int) -> None:
    view: View = LONG
    before, after = (sampled(view, 0, end, columns) for end in (last, last + 1))
    assert set(after) - set(before) <= {last + 1}


@settings(max_examples=50)
@given(st.integers(1, 299), st.integers(2, 64))
def test_they_are_spread_evenly_and_no_fewer_than_half_of_what_there_is_room_for(
    last: int, columns: int
) -> None:
    found = sampled(LONG, 0, last, columns)
    assert len(found) >= min(last + 1, columns // 2)
    assert len({b - a for a, b in pairwise(found[:-1])}) <= 1
