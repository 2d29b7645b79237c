"""The drawing of a run's family tree: no two branches on one another."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from skerry.bulletin.inspection.family import family, lanes
from tests.bulletin.inspection.views import view_of
from tests.bulletin.log_builder import LogBuilder
from tests.bulletin.random_logs import logs


@given(logs())
def test_the_newest_line_is_on_lane_0_and_alone(log: LogBuilder) -> None:
    view = view_of(log)
    placed = lanes(view)
    assert placed.keys() == log.state.commits.keys()
    assert {v for v, lane in placed.items() if lane == 0} == set(view.line)


@given(logs())
def test_branches_on_one_lane_do_not_overlap(log: LogBuilder) -> None:
    view = view_of(log)
    placed, commits = lanes(view), log.state.commits
    spans: dict[int, list[tuple[int, int]]] = {}
    branches: dict[int, list[int]] = {}
    for version in commits:  # a branch: consecutive relatives on one lane
        parent = commits[version].parent
        same = parent is not None and placed[parent] == placed[version]
        root = next((r for r, b in branches.items() if same and parent in b), version)
        branches.setdefault(root, []).append(version)
    for root, branch in branches.items():
        parent = commits[root].parent
        begin = root if parent is None else parent
        spans.setdefault(placed[root], []).append((begin, branch[-1]))
    for lane, found in spans.items():
        if lane == 0:
            continue
        ordered = sorted(found)
        assert all(a[1] < b[0] for a, b in pairwise(ordered)), ordered


@given(logs(), st.none() | st.integers(0, 15), st.none() | st.integers(0, 15), st.integers(1, 9))
def test_a_stretch_has_its_versions_and_the_skips_that_touch_it(
    log: LogBuilder, first: int | None, last: int | None, limit: int
) -> None:
    shown = family(view_of(log), limit=limit, first=first, last=last)
    numbers = [relative.version for relative in shown.versions]
    assert numbers == list(range(shown.first, shown.first + len(numbers)))
    assert len(numbers) <= limit
    expected = [
        (skip.base_version, skip.version)
        for skip in log.state.skips
        if {skip.base_version, skip.version} & set(numbers)
    ]
    assert [(skip.base_version, skip.version) for skip in shown.skips] == expected


def test_a_rollback_is_marked_and_what_it_left_lies_beside() -> None:
    log = LogBuilder.with_versions(4)
    log.append(log.patch(parent=1))
    shown = family(view_of(log), limit=10)
    assert [relative.lane for relative in shown.versions] == [0, 0, 1, 1, 0]
    assert [relative.rollback for relative in shown.versions] == [False] * 4 + [True]
    assert [relative.state for relative in shown.versions][2:4] == ["abandoned"] * 2
