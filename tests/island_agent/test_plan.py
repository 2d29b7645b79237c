"""Where to go and how, from the log alone."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skerry.bulletin.errors import NoPath, VersionUnknown
from skerry.island_agent.errors import LogBehind, RunMismatch, TargetRefused
from skerry.island_agent.marker import Held
from skerry.island_agent.plan import Target, choose, lag, route
from tests.island_agent.runs import Run, make_run


def held(run: Run, version: int) -> Held:
    commit = run.writer.reader.state.commits[version]
    return Held(version=version, layout=commit.layout, weights=commit.result)


def forked() -> Run:
    """0 1 2 3, then 4 and 5 on top of 1: versions 2 and 3 are abandoned."""
    run = make_run(3, words=200)
    run.publish(run.versions[1].mutated(4), parent=1)
    run.publish(run.versions[4].mutated(5))
    return run


FORKED = forked()
STATE = FORKED.writer.reader.state


@given(have=st.none() | st.sampled_from([0, 1, 4, 5]), want=st.sampled_from([0, 1, 4, 5]))
@settings(deadline=None)
def test_a_route_is_a_chain_from_what_is_held_to_what_is_wanted(
    have: int | None, want: int
) -> None:
    found = route(STATE, have=have, want=want) if have != want else None
    if found is None:
        return
    at = found.anchor.held if found.anchor is not None else held(FORKED, have or 0)
    for step in found.patches:
        assert step.base == at.weights
        at = held(FORKED, step.version)
    assert at == found.target == held(FORKED, want)
    assert found.nbytes == sum(ref.size for ref in found.packs) + (
        found.anchor.full.nbytes if found.anchor else 0
    )


def test_the_newest_version_is_wanted_unless_told_otherwise() -> None:
    assert choose(STATE, Target(), None) == 5
    assert choose(STATE, Target(), held(FORKED, 1)) == 5
    assert choose(STATE, Target(), held(FORKED, 5)) == 5


def test_nothing_is_wanted_of_an_empty_log() -> None:
    assert choose(Run().writer.reader.state, Target(), None) is None


def test_a_pin_that_is_not_published_yet_changes_nothing() -> None:
    assert choose(STATE, Target(version=9), held(FORKED, 4)) == 4
    assert choose(STATE, Target(version=9), None) is None


def test_lag_counts_the_versions_of_the_line() -> None:
    assert lag(STATE, 5) == 0
    assert lag(STATE, 1) == 2
    assert lag(STATE, 3) == lag(STATE, None) == 4
    assert choose(STATE, Target(max_lag=2), held(FORKED, 1)) == 1
    assert choose(STATE, Target(max_lag=1), held(FORKED, 1)) == 5


@pytest.mark.parametrize("version", [2, 3])
def test_an_abandoned_version_is_left_and_never_a_target(version: int) -> None:
    assert choose(STATE, Target(max_lag=99), held(FORKED, version)) == 5
    with pytest.raises(TargetRefused, match="abandoned"):
        choose(STATE, Target(version=version), None)


def test_a_pin_never_leads_back_by_itself_but_a_rollback_does() -> None:
    with pytest.raises(TargetRefused, match="older than 4"):
        choose(STATE, Target(version=1), held(FORKED, 4))
    assert choose(STATE, Target(version=1), held(FORKED, 3)) == 1


def test_a_log_that_contradicts_what_is_held_is_refused() -> None:
    with pytest.raises(LogBehind):
        choose(STATE, Target(), Held(version=6, layout=STATE.commits[5].layout,
                                     weights=STATE.commits[5].result))  # fmt: skip
    with pytest.raises(RunMismatch):
        choose(STATE, Target(), Held(version=5, layout=STATE.commits[5].layout,
                                     weights=STATE.commits[4].result))  # fmt: skip


def test_what_cannot_be_reached_is_an_error_that_says_so() -> None:
    run = make_run(1, words=200)
    run.writer.retire(names=[run.writer.reader.state.commits[1].packs[0].key], grace_s=0)
    with pytest.raises(NoPath):
        route(run.writer.reader.state, have=0, want=1)
    with pytest.raises(VersionUnknown):
        route(run.writer.reader.state, have=0, want=7)


def test_targets_are_checked() -> None:
    with pytest.raises(ValueError, match="negative"):
        Target(version=-1)
    with pytest.raises(ValueError, match="negative"):
        Target(max_lag=-1)
