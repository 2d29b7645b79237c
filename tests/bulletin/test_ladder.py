"""The ladder of skips: which there are, and that they keep every way short."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from skerry.bulletin import ladder
from skerry.bulletin.lineage import plan
from skerry.bulletin.records import Retire
from skerry.bulletin.retention import KeepRules, select
from skerry.bulletin.state import LogState
from tests.bulletin.log_builder import LogBuilder


def climb(log: LogBuilder) -> None:
    """Make every rung that is missing; a longer one costs less a version, as real ones do."""
    for base, version in ladder.pairs(log.state):
        wanted = ladder.rung(log.state, base, version)
        if wanted is None:
            continue
        versions = ladder.line(log.state)
        span = versions.index(version) - versions.index(base)
        size = math.ceil(100 * span**0.9)
        if size < wanted.nbytes:
            log.append(log.skip(base, version, size=size))


def worst(state: LogState, kept: frozenset[int]) -> int:
    """The longest way to the newest version, of a newcomer or of any kept version."""
    assert state.newest is not None
    newest = state.newest.version
    starts = [None, *(version for version in kept if version not in state.abandoned)]
    return max(
        sum(step.kind == "patch" for step in plan(state, have=have, want=newest)) for have in starts
    )


def bound(versions: int) -> int:
    return 2 * math.ceil(math.log2(max(versions, 2))) + 1


def test_the_ladder_has_two_four_and_more_versions_back_where_the_number_divides() -> None:
    state = LogBuilder.with_versions(13).state
    back: dict[int, list[int]] = {}
    for base, version in ladder.pairs(state):
        back.setdefault(version, []).append(version - base)
    assert back == {2: [2], 4: [4, 2], 6: [2], 8: [8, 4, 2], 10: [2], 12: [4, 2]}
    assert ladder.pairs(state, max_level=1) == [(v, v + 2) for v in range(0, 11, 2)]


def test_a_fork_has_a_ladder_along_its_own_line_only() -> None:
    log = LogBuilder.with_versions(6)
    log.append(log.patch(parent=2))  # 6: in place 3
    log.append(log.patch(parent=6))  # 7: in place 4
    assert ladder.line(log.state) == [0, 1, 2, 6, 7]
    assert ladder.pairs(log.state) == [(0, 2), (0, 7), (2, 7)]


def test_no_skip_crosses_a_change_of_structure_or_starts_where_nothing_leads() -> None:
    log = LogBuilder.with_versions(3)
    log.append(log.full(parent=2))
    log.append(log.patch(parent=3))
    assert ladder.rung(log.state, 2, 4) is None
    wanted = ladder.rung(log.state, 0, 2)
    assert wanted is not None
    assert [step.version for step in wanted.chain] == [1, 2]
    assert wanted.nbytes == 20
    full = log.state.commits[0].full
    assert full is not None
    log.append(Retire(versions=(0,), keys=(full.prefix,), grace_s=0))
    assert ladder.rung(log.state, 0, 2) is None


def test_a_skip_is_compared_with_a_full_too() -> None:
    log = LogBuilder.with_versions(4)
    log.append(log.patch(parent=3, size=50, with_full=True, full_size=30))
    wanted = ladder.rung(log.state, 0, 4)
    assert wanted is not None
    assert wanted.nbytes == 30


@settings(max_examples=12)
@given(
    count=st.integers(2, 100),
    last=st.integers(1, 20),
    every=st.none() | st.integers(2, 50),
    pinned=st.sets(st.integers(0, 60), max_size=3),
    collect_every=st.integers(1, 30),
    climb_every=st.integers(1, 9),
    forks=st.sets(st.integers(5, 90), max_size=2),
)
def test_a_late_joiner_needs_logarithmically_many_patches(
    count: int,
    last: int,
    every: int | None,
    pinned: set[int],
    collect_every: int,
    climb_every: int,
    forks: set[int],
) -> None:
    log = LogBuilder(signer=None)
    log.append(log.fence())
    log.append(log.full(parent=None, size=100_000))
    kept = frozenset({0})
    for version in range(1, count):
        live = sorted(set(log.state.commits) - log.state.retired - log.state.abandoned)
        parent = live[-min(3, len(live))] if version in forks else live[-1]
        log.append(log.patch(parent=parent, size=100))
        if version % climb_every == 0:
            climb(log)
        if version % collect_every == 0:
            pins = frozenset(p for p in pinned if p <= version and p not in log.state.retired)
            chosen = select(log.state, KeepRules(last=last, every=every, pinned=pins))
            kept = chosen.kept
            if chosen.versions or chosen.keys:
                log.append(Retire(versions=chosen.versions, keys=chosen.keys, grace_s=0))
        kept = frozenset({*kept, version})
        # Collection may come before compaction, which makes good for it as soon as it comes.
        assert worst(log.state, kept) <= bound(count) + version % climb_every
