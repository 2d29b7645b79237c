"""Rewards and group-relative advantages, without a model and without I/O."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
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
