"""The arithmetic of GRPO: rewards and advantages."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.trainer.rl.grpo import LetterReward, group_advantages
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


def test_the_reward_is_the_share_of_tokens_with_the_letter() -> None:
    tokenizer = tiny_llama().tokenizer()
    reward = LetterReward(tokenizer)
    tokens = tokenizer.encode("the tea is hot").ids
    texts = [tokenizer.decode([token]) for token in tokens]
    assert "".join(texts) == "the tea is hot"
    assert reward(tokens) == np.mean(["t" in text for text in texts])
    assert reward([]) == 0
