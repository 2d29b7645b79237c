"""The arithmetic of group-relative policy optimisation, without a model and without I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Tokenizer

_EPS = 1e-6


class LetterReward:
    """A reward that anyone can check: the share of tokens whose text contains a letter."""

    def __init__(self, tokenizer: Tokenizer, letter: str = "t") -> None:
        size = tokenizer.get_vocab_size()
        self._hits = np.array([letter in tokenizer.decode([token]) for token in range(size)])

    def __call__(self, tokens: Sequence[int]) -> float:
        if not tokens:
            return 0.0
        return float(self._hits[list(tokens)].mean())


def group_advantages(rewards: Sequence[float], groups: Sequence[int]) -> list[float]:
    """Return how far every reward lies from its group's mean, in the group's standard deviations.

    Groups may differ in size, because stale members are dropped before; a group without spread,
    one of a single member too, teaches nothing: zero.
    """
    values, labels = np.asarray(rewards, np.float64), np.asarray(groups)
    advantages = np.zeros_like(values)
    for group in set(groups):
        members = labels == group
        centred = values[members] - values[members].mean()
        advantages[members] = centred / (centred.std() + _EPS)
    return [float(a) for a in advantages]


def clipped_objective(
    logprobs: torch.Tensor, behaviour: torch.Tensor, advantages: torch.Tensor, *, clip: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the loss of every token and whether its gradient is cut off, each of shape [n].

    `behaviour` are the log-probabilities that the tokens were sampled with, by whichever version;
    the ratio to them counts for at most `1 + clip`, or `1 - clip`, where more would pay.
    """
    ratio = torch.exp(logprobs - behaviour)
    clipped = ratio.clamp(1 - clip, 1 + clip)
    losses = -torch.minimum(ratio * advantages, clipped * advantages)
    cut = torch.where(advantages > 0, ratio > 1 + clip, ratio < 1 - clip) & (advantages != 0)
    return losses, cut


@dataclass(frozen=True, slots=True, kw_only=True)
class Staleness:
    """How many optimizer steps old a rollout may be.

    Counted in steps, not in versions: publishes may coalesce, and a rollback makes a new version
    of an old step.
    """

    max_off_policy_steps: int

    def __post_init__(self) -> None:
        if self.max_off_policy_steps < 0:
            raise ValueError(
                f"max_off_policy_steps: expected 0 or more, found {self.max_off_policy_steps}"
            )

    def lag(
        self, versions: Iterable[int], step_of: Mapping[int, int], policy_step: int
    ) -> int | None:
        """Return how many steps the oldest of `versions` is behind; None if one is unknown."""
        steps = [step_of.get(version) for version in versions]
        known = [step for step in steps if step is not None]
        return policy_step - min(known) if known and len(known) == len(steps) else None

    def admits(self, lag: int | None) -> bool:
        """Say whether a rollout of this lag is trained on.  What is of unknown age is not."""
        return lag is not None and lag <= self.max_off_policy_steps
