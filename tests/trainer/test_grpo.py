"""The arithmetic of GRPO: advantages, clipping, the reward and what counts as stale."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from skerry.trainer.grpo import LetterReward, Staleness, clipped_objective, group_advantages
from skerry.trainer.tiny import tiny_llama

rewards = st.floats(0, 1)


@given(st.lists(st.tuples(rewards, st.integers(0, 3)), min_size=1, max_size=24))
def test_advantages_of_a_group_sum_to_zero_and_keep_its_order(
    drawn: list[tuple[float, int]],
) -> None:
    values, groups = [r for r, _ in drawn], [g for _, g in drawn]
    advantages = group_advantages(values, groups)
    for group in set(groups):
        inside = [(r, a) for r, a, g in zip(values, advantages, groups, strict=True) if g == group]
        assert sum(a for _, a in inside) == pytest.approx(0, abs=1e-6)
        ordered = sorted(inside)
        assert [a for _, a in ordered] == sorted(a for _, a in ordered)


def test_advantages_are_in_standard_deviations_of_the_group() -> None:
    found = group_advantages([0.0, 1.0, 5.0, 5.0, 9.0], [0, 0, 1, 1, 2])
    assert found == pytest.approx([-1.0, 1.0, 0.0, 0.0, 0.0], abs=1e-4)


@given(st.floats(-3, 0), st.floats(-3, 0), st.floats(-2, 2), st.floats(0.05, 0.5))
def test_the_gradient_is_cut_exactly_where_moving_on_would_pay_beyond_the_clip(
    now: float, then: float, advantage: float, clip: float
) -> None:
    logprob = torch.tensor([now], dtype=torch.float64, requires_grad=True)
    losses, cut = clipped_objective(
        logprob,
        torch.tensor([then], dtype=torch.float64),
        torch.tensor([advantage], dtype=torch.float64),
        clip=clip,
    )
    losses.sum().backward()  # type: ignore[no-untyped-call]
    assert logprob.grad is not None
    ratio = math.exp(now - then)
    if cut.item():
        assert logprob.grad.item() == 0
    else:
        assert logprob.grad.item() == pytest.approx(-ratio * advantage)


def test_the_reward_is_the_share_of_tokens_with_the_letter() -> None:
    tokenizer = tiny_llama().tokenizer()
    reward = LetterReward(tokenizer)
    tokens = tokenizer.encode("the tea is hot").ids
    texts = [tokenizer.decode([token]) for token in tokens]
    assert "".join(texts) == "the tea is hot"
    assert reward(tokens) == np.mean(["t" in text for text in texts])
    assert reward([]) == 0


def test_staleness_counts_steps_from_the_oldest_version() -> None:
    staleness = Staleness(max_off_policy_steps=2)
    step_of = {0: 0, 1: 1, 2: 4, 3: 5}  # version 2 stands for three steps published as one
    assert staleness.lag([3], step_of, 5) == 0
    assert staleness.lag([2, 3], step_of, 5) == 1
    assert staleness.lag([1, 3], step_of, 5) == 4
    assert staleness.lag([3, 9], step_of, 5) is None
    assert staleness.lag([], step_of, 5) is None
    assert [staleness.admits(lag) for lag in (0, 2, 3, None)] == [True, True, False, False]
