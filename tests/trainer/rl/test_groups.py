"""Groups: what is dropped from them, when they are dropped whole, and what is asked for again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.inference.attribution import Span
from skerry.trainer.rl.groups import Fate, GroupRule, Judge, Missing
from skerry.trainer.rl.rollouts import Rollout
from skerry.trainer.rl.staleness import Staleness

STEP_OF = {version: version for version in range(10)}
NOW = 9


def rollout(group: int, *versions: int, routed: bytes | None = None) -> Rollout:
    """Make one token by each version."""
    return Rollout(
        group=group,
        prompt=(1,),
        tokens=(2,) * len(versions),
        logprobs=(-1.0,) * len(versions),
        spans=tuple(Span(version=v, start=n, end=n + 1) for n, v in enumerate(versions)),
        routed_experts=routed,
    )


def judge(rule: GroupRule, *, limit: int = 3, samples: int = 4, routing: bool = False) -> Judge:
    return Judge(
        staleness=Staleness(max_off_policy_steps=limit),
        rule=rule,
        samples=samples,
        routed=lambda r: not routing or r.routed_experts is not None,
    )


def fates(rule: GroupRule, *rollouts: Rollout, samples: int = 4) -> list[Fate]:
    return [j.fate for j in judge(rule, samples=samples).judge(rollouts, STEP_OF, NOW)]


def test_a_rollout_is_as_old_as_its_oldest_span() -> None:
    found = judge(GroupRule()).judge(
        [rollout(0, 6, 9), rollout(0, 5, 9), rollout(0, 9), rollout(0, 12)], STEP_OF, NOW
    )
    assert [(j.fate, j.lag) for j in found] == [
        (Fate.USED, 3),
        (Fate.STALE, 4),
        (Fate.USED, 0),
        (Fate.UNKNOWN, None),
    ]


def test_what_is_left_of_a_group_is_trained_on_unless_it_is_too_little() -> None:
    stale = rollout(0, 1)
    assert fates(GroupRule(), stale, rollout(0, 9), rollout(0, 8)) == [
        Fate.STALE,
        Fate.USED,
        Fate.USED,
    ]
    assert fates(GroupRule(), stale, rollout(0, 9)) == [Fate.STALE, Fate.INCOMPLETE]
    assert fates(GroupRule(), rollout(0, 9), samples=1) == [Fate.USED]


def test_a_group_that_is_dropped_whole_leaves_the_others_alone() -> None:
    batch = [rollout(group, 9) for group in (0, 1) for _ in range(2)]
    batch[1] = rollout(0, 1)
    rule = GroupRule(missing=Missing.DROP)
    assert fates(rule, *batch, samples=2) == [Fate.INCOMPLETE, Fate.STALE, Fate.USED, Fate.USED]


def test_of_a_group_that_lies_too_far_apart_the_largest_part_within_the_spread_stays() -> None:
    batch = [rollout(0, 6), rollout(0, 8), rollout(0, 8, 9), rollout(0, 6, 9)]
    rule = GroupRule(max_spread_steps=1)
    assert fates(rule, *batch) == [Fate.SPREAD, Fate.USED, Fate.USED, Fate.SPREAD]
    halves = [rollout(0, 6), rollout(0, 6), rollout(0, 9), rollout(0, 9)]
    assert fates(rule, *halves) == [Fate.SPREAD, Fate.SPREAD, Fate.USED, Fate.USED]


members = st.lists(
    st.tuples(st.integers(0, 2), st.lists(st.integers(0, 9), min_size=1, max_size=3).map(sorted)),
    max_size=12,
)


@given(members, st.none() | st.integers(0, 3), st.integers(1, 4), st.sampled_from(Missing))
def test_used_groups_keep_every_rule_and_nothing_is_lost(
    drawn: list[tuple[int, list[int]]], spread: int | None, least: int, missing: Missing
) -> None:
    rule = GroupRule(max_spread_steps=spread, min_members=least, missing=missing)
    batch = [rollout(group, *versions) for group, versions in drawn]
    judged = judge(rule).judge(batch, STEP_OF, NOW)
    assert [j.rollout for j in judged] == batch
    for group in {r.group for r in batch}:
        used = [j for j in judged if j.rollout.group == group and j.fate is Fate.USED]
        if not used:
            continue
        versions = [v for j in used for v in j.rollout.versions]
        assert min(versions) >= NOW - 3
        assert spread is None or max(versions) - min(versions) <= spread
        assert len(used) >= (4 if missing is Missing.DROP else least)


def test_missing_members_are_asked_for_again_those_of_silent_groups_too() -> None:
    rule = GroupRule(missing=Missing.REFILL)
    batch = [rollout(0, 9), rollout(0, 9), rollout(0, 9), rollout(0, 1), rollout(1, 9)]
    whole = judge(rule)
    judged = whole.judge(batch, STEP_OF, NOW)
    assert judged[-1].fate is Fate.INCOMPLETE
    assert whole.lacking(judged, groups=3) == {0: 1, 1: 3, 2: 4}
    assert judge(GroupRule()).lacking(judged, groups=3) == {}


def test_with_replay_a_rollout_without_routed_experts_is_dropped() -> None:
    batch = [rollout(0, 9, routed=b"x"), rollout(0, 9, routed=b"x"), rollout(0, 9)]
    found = judge(GroupRule(), routing=True).judge(batch, STEP_OF, NOW)
    assert [j.fate for j in found] == [Fate.USED, Fate.USED, Fate.UNROUTED]


@pytest.mark.parametrize("wrong", [{"max_spread_steps": -1}, {"min_members": 0}, {"refills": 0}])
def test_rules_that_mean_nothing_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        GroupRule(**wrong)  # type: ignore[arg-type]
