"""The planner against brute force, and the answers it gives by name."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.bulletin.errors import NoPath, VersionGone, VersionUnknown
from skerry.bulletin.lineage import Step, plan
from skerry.bulletin.records import Retire
from skerry.bulletin.state import LogState
from tests.bulletin.log_builder import LogBuilder

SIZES = st.integers(1, 30)


@st.composite
def fork_logs(draw: st.DrawFn) -> LogBuilder:
    """A small unsigned log with forks, skips in both directions, and retirements."""
    log = LogBuilder(signer=None)
    log.append(log.fence())
    for version in range(draw(st.integers(1, 6))):
        parent = draw(st.integers(0, version - 1)) if version else None
        if parent is None or draw(st.integers(0, 3)) == 0:
            log.append(log.full(parent=parent, size=draw(SIZES)))
        else:
            with_full = draw(st.booleans())
            log.append(
                log.patch(
                    parent=parent,
                    packs=draw(st.integers(0, 2)),
                    size=draw(SIZES),
                    with_full=with_full,
                    full_size=draw(SIZES),
                )
            )
    versions = list(log.state.commits)
    pairs = st.tuples(st.sampled_from(versions), st.sampled_from(versions))
    for a, b in draw(st.lists(pairs.filter(lambda p: p[0] != p[1]), max_size=5)):
        log.append(log.skip(a, b, size=draw(SIZES)))
    names = [pack.key for commit in log.state.commits.values() for pack in commit.packs]
    names += [pack.key for skip in log.state.skips for pack in skip.packs]
    names += [c.full.prefix for c in log.state.commits.values() if c.full is not None]
    gone_keys = draw(st.sets(st.sampled_from(names), max_size=4)) if names else set()
    gone = draw(st.sets(st.sampled_from(versions), max_size=2)) - {versions[-1]}
    if gone or gone_keys:
        body = Retire(versions=tuple(sorted(gone)), keys=tuple(sorted(gone_keys)), grace_s=0)
        log.append(body)
    return log


forks = fork_logs().map(lambda log: log.state)


def edges(state: LogState) -> Iterator[tuple[int | None, int, int]]:
    """Every usable move, written down a second time: from, to, bytes."""
    for version, commit in state.commits.items():
        if commit.full and commit.full.prefix not in state.retired_keys:
            yield None, version, sum(file.size for file in commit.full.files)
        if commit.base and not {pack.key for pack in commit.packs} & state.retired_keys:
            yield commit.parent, version, sum(pack.size for pack in commit.packs)
    for skip in state.skips:
        if not {pack.key for pack in skip.packs} & state.retired_keys:
            yield skip.base_version, skip.version, sum(pack.size for pack in skip.packs)


def cheapest(state: LogState, have: int | None, want: int) -> int | None:
    """The cost of the best of all simple paths."""
    moves = list(edges(state))

    def search(at: int | None, seen: frozenset[int | None]) -> Iterator[int]:
        if at == want:
            yield 0
            return
        for start, to, nbytes in moves:
            if start in (at, None) and to not in seen:
                yield from (nbytes + rest for rest in search(to, seen | {to}))

    return min(search(have, frozenset({have})), default=None)


@given(forks, st.data())
def test_the_plan_costs_what_brute_force_finds(state: LogState, data: st.DataObject) -> None:
    versions = list(state.commits)
    have = data.draw(st.sampled_from([None, *versions]))
    want = data.draw(st.sampled_from(versions))
    try:
        steps = plan(state, have=have, want=want, abandoned_too=True)
    except VersionGone:
        assert want in state.retired
        assert have != want
        return
    except NoPath:
        assert cheapest(state, have, want) is None
        return
    assert sum(step.nbytes for step in steps) == cheapest(state, have, want)
    check(state, have, want, steps)


def check(state: LogState, have: int | None, want: int, steps: tuple[Step, ...]) -> None:
    at = have
    for step in steps:
        assert step.kind == "full" or (step.base == at and at is not None)
        if step.kind == "patch" and step.base is not None:
            assert step.base_result == state.commits[step.base].result
        commit = state.commits[step.version]
        assert (step.result, step.layout) == (commit.result, commit.layout)
        assert step.nbytes == sum(ref.size for ref in step.objects)
        at = step.version
    assert at == want
    assert all(step.kind == "patch" for step in steps[1:])


def test_a_chain_is_resolved_to_any_version_not_only_the_newest() -> None:
    state = LogBuilder.with_versions(7).state
    assert [step.version for step in plan(state, have=2, want=5)] == [3, 4, 5]
    assert plan(state, have=5, want=5) == ()
    assert [step.kind for step in plan(state, have=None, want=1)] == ["full", "patch"]


def test_fewer_bytes_win_over_fewer_steps_and_then_fewer_steps_win() -> None:
    log = LogBuilder.with_versions(4)
    log.append(log.skip(0, 3, size=31))
    assert len(plan(log.state, have=0, want=3)) == 3
    log.append(log.skip(0, 3, size=30))
    (step,) = plan(log.state, have=0, want=3)
    assert (step.base, step.version, step.nbytes) == (0, 3, 30)


def test_a_full_is_taken_when_the_chain_is_dearer() -> None:
    log = LogBuilder.with_versions(4)
    log.append(log.patch(parent=3, with_full=True, full_size=25))
    (step,) = plan(log.state, have=0, want=4)
    assert step.kind == "full"
    assert step.full == log.state.commits[4].full
    assert step.full is not None
    assert [ref.key for ref in step.objects] == [f"{step.full.prefix}/model.safetensors"]
    assert len(plan(log.state, have=3, want=4)) == 1


def test_an_unknown_version_is_unknown_on_either_side() -> None:
    state = LogBuilder.with_versions(2).state
    for have, want in ((0, 2), (None, -1), (5, 1)):
        with pytest.raises(VersionUnknown, match="the newest is 1"):
            plan(state, have=have, want=want)
    with pytest.raises(VersionUnknown, match="newest is None"):
        plan(LogState(), have=None, want=0)


def test_an_abandoned_version_is_no_target_but_can_be_read_and_left() -> None:
    log = LogBuilder.with_versions(4)
    log.append(log.patch(parent=1))
    assert log.state.abandoned == {2, 3}
    with pytest.raises(VersionGone, match="version 3 is abandoned"):
        plan(log.state, have=1, want=3)
    assert len(plan(log.state, have=1, want=3, abandoned_too=True)) == 2
    assert [step.kind for step in plan(log.state, have=3, want=4)] == ["full", "patch", "patch"]
    log.append(log.skip(3, 4))
    assert [step.base for step in plan(log.state, have=3, want=4)] == [3]


def test_a_retired_version_is_no_target_but_can_be_left() -> None:
    log = LogBuilder.with_versions(4)
    log.append(Retire(versions=(2,), keys=(), grace_s=0))
    with pytest.raises(VersionGone, match="version 2 is retired"):
        plan(log.state, have=1, want=2)
    assert [step.version for step in plan(log.state, have=2, want=3)] == [3]
    assert plan(log.state, have=2, want=2) == ()


def test_retired_objects_are_never_planned_with() -> None:
    log = LogBuilder.with_versions(3)
    names = (log.state.commits[1].packs[0].key,)
    log.append(Retire(versions=(), keys=names, grace_s=0))
    with pytest.raises(NoPath, match="from nothing to version 2"):
        plan(log.state, have=None, want=2)
    assert len(plan(log.state, have=1, want=2)) == 1


def test_skips_that_form_a_loop_do_not_hang_the_planner() -> None:
    log = LogBuilder.with_versions(3)
    for a, b in ((0, 1), (1, 0), (1, 2), (2, 1), (2, 0)):
        log.append(log.skip(a, b, size=1))
    log.append(log.full(parent=2))
    full = log.state.commits[3].full
    assert full is not None
    log.append(Retire(versions=(), keys=(full.prefix,), grace_s=0))
    with pytest.raises(NoPath):
        plan(log.state, have=0, want=3)


def test_a_long_chain_is_planned_whole() -> None:
    state = LogBuilder.with_versions(1500, signer=None).state
    assert len(plan(state, have=None, want=1499)) == 1500
