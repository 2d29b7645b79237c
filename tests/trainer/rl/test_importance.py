"""The three bounds: each is its paper's formula, by an independent gradient."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from skerry.trainer.rl.importance import Bound, Importance, objective

logprob = st.floats(-3, 0)
advantage = st.floats(-2, 2)


def gradient(now: float, then: float, a: float, rule: Importance) -> tuple[float, float, bool]:
    """Return loss, d loss / d logprob and whether the token was bounded."""
    logprobs = torch.tensor([now], dtype=torch.float64, requires_grad=True)
    behaviour, advantages = (torch.tensor([x], dtype=torch.float64) for x in (then, a))
    losses, bounded = objective(logprobs, behaviour, advantages, rule)
    losses.sum().backward()  # type: ignore[no-untyped-call]
    assert logprobs.grad is not None
    return losses.item(), logprobs.grad.item(), bool(bounded.item())


@given(logprob, logprob, advantage, st.floats(1, 4))
def test_truncated_weighs_the_score_by_the_ratio_up_to_the_cap(
    now: float, then: float, a: float, cap: float
) -> None:
    weight = min(math.exp(now - then), cap)
    loss, slope, _ = gradient(now, then, a, Importance(bound=Bound.TRUNCATED, cap=cap))
    assert loss == pytest.approx(-weight * a)
    assert slope == pytest.approx(-weight * a)


@given(logprob, logprob, advantage, st.floats(0.1, 0.9), st.floats(1, 6))
def test_masked_leaves_a_token_out_exactly_beyond_low_and_high(
    now: float, then: float, a: float, low: float, high: float
) -> None:
    ratio = math.exp(now - then)
    rule = Importance(bound=Bound.MASKED, low=low, high=high)
    _, slope, bounded = gradient(now, then, a, rule)
    if bounded:
        assert not low * (1 + 1e-9) < ratio < high * (1 - 1e-9)
        assert slope == 0
    else:
        assert slope == pytest.approx(-ratio * a)


@given(logprob, logprob, advantage, st.floats(0.05, 0.5))
def test_clipped_cuts_the_gradient_exactly_where_moving_on_would_pay_beyond_the_clip(
    now: float, then: float, a: float, clip: float
) -> None:
    ratio = math.exp(now - then)
    _, slope, cut = gradient(now, then, a, Importance(bound=Bound.CLIPPED, clip=clip))
    if cut:
        assert slope == 0
    else:
        assert slope == pytest.approx(-ratio * a)


@given(advantage, logprob)
def test_on_policy_the_three_agree(a: float, now: float) -> None:
    for bound in Bound:
        assert gradient(now, now, a, Importance(bound=bound))[1] == pytest.approx(-a)


def test_an_unlikely_blamed_token_cannot_blow_up_where_the_ratio_is_truncated() -> None:
    """PPO's clip bounds a blamed token's ratio from below only."""
    _, slope, _ = gradient(-0.1, -9.0, -1.0, Importance(bound=Bound.TRUNCATED, cap=2.0))
    assert slope == 2.0
    assert gradient(-0.1, -9.0, -1.0, Importance(bound=Bound.CLIPPED))[1] > 1000


@pytest.mark.parametrize(
    "wrong", [{"cap": 0.5}, {"low": 1.0}, {"high": 0.9}, {"clip": 0.0}, {"cap": math.nan}]
)
def test_numbers_that_bound_nothing_or_everything_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="cap >= 1"):
        Importance(**wrong)  # type: ignore[arg-type]
