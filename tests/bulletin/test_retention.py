"""What the keep rules keep, and that nothing which a kept version needs is ever given up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.bulletin.errors import NoPath, VersionGone, VersionUnknown
from skerry.bulletin.lineage import plan
from skerry.bulletin.records import Retire
from skerry.bulletin.retention import STRETCH, KeepRules, kept_versions, select
from skerry.bulletin.state import LogState
from tests.bulletin.log_builder import LogBuilder
from tests.bulletin.test_lineage import SIZES, fork_logs

TINY = st.integers(1, 4)


@st.composite
def rules(draw: st.DrawFn, state: LogState) -> KeepRules:
    live = sorted(set(state.commits) - state.retired)
    return KeepRules(
        last=draw(TINY),
        every=draw(st.none() | TINY),
        pinned=frozenset(draw(st.sets(st.sampled_from(live), max_size=2))),
        newer_than_s=draw(st.none() | st.integers(0, 8)),
    )


def cost(state: LogState, have: int | None, want: int) -> int | None:
    try:
        steps = plan(state, have=have, want=want, abandoned_too=True)
    except NoPath:
        return None
    return sum(step.nbytes for step in steps)


def collect(log: LogBuilder, keep: KeepRules) -> frozenset[int]:
    """Retire in the log what the rules do not keep."""
    times = {version: 1000 * version for version in log.state.commits}
    chosen = select(log.state, keep, now_ms=1000 * len(times), times=times)
    if chosen.versions or chosen.keys:
        log.append(Retire(versions=chosen.versions, keys=chosen.keys, grace_s=0))
    return chosen.kept


@given(fork_logs(), st.data())
def test_every_kept_version_stays_within_reach_at_bounded_cost(
    log: LogBuilder, data: st.DataObject
) -> None:
    for _ in range(2):  # once more, from what the first collection left, and a version later
        before, newest = log.state, log.state.newest
        assert newest is not None
        kept = collect(log, data.draw(rules(before)))
        assert newest.version in kept
        for want in kept:
            newcomer = cost(log.state, None, want)
            assert newcomer == cost(before, None, want)
            for have in kept:
                was, now = cost(before, have, want), cost(log.state, have, want)
                if want == newest.version or was is None:
                    assert now == was
                else:
                    assert now is not None
                    assert now <= STRETCH * was
                    assert newcomer is None or now <= newcomer
        log.append(log.patch(parent=newest.version, size=data.draw(SIZES)))


@given(fork_logs(), st.data())
def test_what_was_collected_once_is_not_collected_again(
    log: LogBuilder, data: st.DataObject
) -> None:
    keep = data.draw(rules(log.state))
    kept = collect(log, keep)
    length = len(log.slots)
    assert collect(log, keep) == kept
    assert len(log.slots) == length


def test_the_rules_add_up_and_the_newest_is_always_kept() -> None:
    log = LogBuilder.with_versions(20)

    def kept(**settings: object) -> list[int]:
        keep = KeepRules(**{"last": 1, **settings})  # type: ignore[arg-type]
        times = {version: 1000 * version for version in log.state.commits}
        return sorted(kept_versions(log.state, keep, now_ms=20_000, times=times))

    assert kept() == [19]
    assert kept(last=3) == [17, 18, 19]
    assert kept(every=8) == [0, 8, 16, 19]
    assert kept(pinned=frozenset({2, 5})) == [2, 5, 19]
    assert kept(newer_than_s=3) == [17, 18, 19]
    assert kept(last=2, every=10, pinned=frozenset({3})) == [0, 3, 10, 18, 19]


def test_a_version_whose_time_is_not_known_counts_as_new() -> None:
    state = LogBuilder.with_versions(3).state
    keep = KeepRules(last=1, newer_than_s=1)
    assert kept_versions(state, keep, now_ms=10**12, times={0: 5}) == {1, 2}


def test_after_a_rollback_both_the_last_numbers_and_the_last_of_the_line_are_kept() -> None:
    log = LogBuilder.with_versions(6)
    log.append(log.patch(parent=2))
    log.append(log.patch(parent=6))
    assert log.state.abandoned == {3, 4, 5}
    keep = KeepRules(last=3, every=5)  # 5 is abandoned: the rule is about targets
    assert kept_versions(log.state, keep, now_ms=0, times={}) == {0, 2, 5, 6, 7}
    pinned = KeepRules(last=1, pinned=frozenset({4}))
    assert kept_versions(log.state, pinned, now_ms=0, times={}) == {4, 7}


def test_a_pin_that_cannot_hold_is_refused_not_ignored() -> None:
    log = LogBuilder.with_versions(3)
    with pytest.raises(VersionUnknown, match="version 7"):
        select(log.state, KeepRules(pinned=frozenset({7})))
    log.append(Retire(versions=(1,), keys=(), grace_s=0))
    with pytest.raises(VersionGone, match="retired already"):
        select(log.state, KeepRules(pinned=frozenset({1})))


def test_packs_outlive_their_version_as_links() -> None:
    log = LogBuilder.with_versions(10)
    chosen = select(log.state, KeepRules(last=1, pinned=frozenset({4})))
    assert chosen.kept == {4, 9}
    assert chosen.versions == (0, 1, 2, 3, 5, 6, 7, 8)
    assert chosen.keys == ()  # full 0 and all patches lead to 4 or 9
    log.append(log.skip(4, 9, size=15))
    log.append(log.skip(0, 4, size=35))
    chosen = select(log.state, KeepRules(last=1, pinned=frozenset({4})))
    patches = {log.state.commits[v].packs[0].key for v in range(1, 10)}
    assert set(chosen.keys) == patches
    assert chosen.nbytes == 90


@pytest.mark.parametrize(("full_size", "chain_stays"), [(80, False), (81, True)])
def test_a_way_between_kept_versions_goes_only_if_another_is_at_most_twice_as_dear(
    full_size: int, chain_stays: bool
) -> None:
    log = LogBuilder.with_versions(4)
    log.append(log.patch(parent=3, with_full=True, full_size=full_size))
    log.append(log.patch(parent=0))  # so that the chain to 4 is no way to the newest version
    chosen = select(log.state, KeepRules(last=1, pinned=frozenset({0, 4})))
    chain = {log.state.commits[version].packs[0].key for version in (1, 2, 3, 4)}
    assert set(chosen.keys) == (set() if chain_stays else chain)


def test_an_empty_log_has_nothing_to_collect() -> None:
    chosen = select(LogState(), KeepRules())
    assert (chosen.kept, chosen.versions, chosen.keys) == (frozenset(), (), ())


@pytest.mark.parametrize("wrong", [{"last": 0}, {"every": 0}, {"newer_than_s": -1}])
def test_rules_that_mean_nothing_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="expected"):
        KeepRules(**wrong)  # type: ignore[arg-type]
