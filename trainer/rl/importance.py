"""How much a token counts that another version sampled: importance ratios, and their bounds.

The ratio of a token is that of its probability now to the one that it was sampled with, by the
version that made it; a rollout whose spans are of several versions has ratios to several.  The
formulas are other people's, see `Bound`; `docs/reinforcement-learning.md` says why the first is the
default.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import torch


class Bound(StrEnum):
    """What keeps ratios from blowing up.

    TRUNCATED  min(ratio, cap) times the score-function gradient: V-trace's rho (Espeholt et al.
               2018, arXiv:1802.01561), for language models AIPO (LlamaRL, Wu et al. 2025,
               arXiv:2505.24034).
    MASKED     the ratio where it lies in [low, high], else the token is left out: IcePop
               (Ling Team 2025, arXiv:2510.18855), whose low and high are 0.5 and 5.
    CLIPPED    min(ratio A, clip(ratio, 1 - clip, 1 + clip) A): PPO (Schulman et al. 2017,
               arXiv:1707.06347), as in GRPO (Shao et al. 2024, arXiv:2402.03300).
    """

    TRUNCATED = "truncated"
    MASKED = "masked"
    CLIPPED = "clipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Importance:
    """The bound and its numbers; those of the other two are not used."""

    bound: Bound = Bound.TRUNCATED
    cap: float = 2.0
    low: float = 0.5
    high: float = 5.0
    clip: float = 0.2

    def __post_init__(self) -> None:
        if not self.cap >= 1 or not 0 <= self.low < 1 <= self.high or not 0 < self.clip < 1:
            raise ValueError(f"cap >= 1, 0 <= low < 1 <= high, 0 < clip < 1: {self}")


def objective(
    logprobs: torch.Tensor, behaviour: torch.Tensor, advantages: torch.Tensor, rule: Importance
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the loss of every token and whether it was bounded, each of shape [n].

    `behaviour` are the log-probabilities that the tokens were sampled with, each by the version
    that made it.
    """
    ratio = torch.exp(logprobs - behaviour)
    if rule.bound is Bound.CLIPPED:
        return _clipped(ratio, advantages, rule.clip)
    fixed = ratio.detach()
    if rule.bound is Bound.MASKED:
        outside = (fixed < rule.low) | (fixed > rule.high)
        weights = fixed.masked_fill(outside, 0.0)
    else:
        outside = fixed > rule.cap
        weights = fixed.clamp(max=rule.cap)
    # Worth -weight * advantage, with the gradient of -weight * advantage * logprob.
    return -weights * advantages * (1 + logprobs - logprobs.detach()), outside


def _clipped(
    ratio: torch.Tensor, advantages: torch.Tensor, clip: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """A token's gradient is cut off exactly where moving on would pay beyond the clip."""
    losses = -torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)
    cut = torch.where(advantages > 0, ratio > 1 + clip, ratio < 1 - clip) & (advantages != 0)
    return losses, cut
