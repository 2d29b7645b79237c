"""What counts as stale, and which versions a request for a fresh rollout accepts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.inference.attribution import Span
from skerry.inference.constraint import parse_header
from skerry.trainer.rl.staleness import Staleness, token_lags


def test_staleness_counts_steps_from_the_oldest_version() -> None:
    staleness = Staleness(max_off_policy_steps=2)
    step_of = {0: 0, 1: 1, 2: 4, 3: 5}  # version 2 stands for three steps published as one
    assert staleness.lag([3], step_of, 5) == 0
    assert staleness.lag([2, 3], step_of, 5) == 1
    assert staleness.lag([1, 3], step_of, 5) == 4
    assert staleness.lag([3, 9], step_of, 5) is None
    assert staleness.lag([], step_of, 5) is None
    assert [staleness.admits(lag) for lag in (0, 2, 3, None)] == [True, True, False, False]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=12), st.integers(0, 4), st.integers(0, 9))
def test_a_version_is_accepted_exactly_if_it_will_be_fresh_or_is_not_there_yet(
    jumps: list[int], limit: int, ahead: int
) -> None:
    step_of = {3 + version: sum(jumps[: version + 1]) for version in range(len(jumps))}
    staleness = Staleness(max_off_policy_steps=limit)
    policy_step = max(step_of.values()) + ahead
    accepted = parse_header(staleness.accepted(step_of, policy_step)).resolve(None)
    for version in step_of:
        fresh = staleness.admits(staleness.lag([version], step_of, policy_step))
        assert accepted.contains(version) == fresh
    assert accepted.contains(max(step_of) + 1)


def test_after_a_rollback_to_an_old_step_nothing_is_accepted_before_the_next_version() -> None:
    step_of = {0: 0, 1: 9, 2: 10, 3: 1}  # version 3 is step 1 again
    assert Staleness(max_off_policy_steps=2).accepted(step_of, 11) == "4.."


def test_every_token_is_as_old_as_the_version_of_its_own_span() -> None:
    spans = (Span(version=4, start=0, end=2), Span(version=7, start=2, end=3))
    assert token_lags(spans, {4: 40, 7: 43}, 45) == (5, 5, 2)
    with pytest.raises(KeyError):
        token_lags(spans, {4: 40}, 45)


def test_a_negative_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="max_off_policy_steps: expected 0 or more, found -1"):
        Staleness(max_off_policy_steps=-1)
