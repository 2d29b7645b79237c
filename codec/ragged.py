"""Sequences of different lengths laid out step by step, so that NumPy can walk all of them at once.

Lanes are the sequences, the longest first; at step s those with more than s items are a prefix of
them, and their items lie together.
"""

from __future__ import annotations

import numpy as np

from skerry.codec.rates import Ints


class Steps:
    """The layout: `order[lane]` is the number of the sequence in that lane."""

    def __init__(self, sizes: Ints) -> None:
        self.order = np.argsort(-sizes, kind="stable")
        self._sizes = sizes[self.order]
        longest = int(sizes.max(initial=0))
        self.running = np.searchsorted(-self._sizes, -np.arange(longest), side="left")
        self.offsets = np.concatenate([[0], np.cumsum(self.running)])
        self.count = longest

    @property
    def items(self) -> int:
        """How many items all sequences have together."""
        return int(self.offsets[-1])

    def at(self, step: int) -> slice:
        """Return where the items of a step lie: those of lanes 0, 1, ... in order."""
        return slice(int(self.offsets[step]), int(self.offsets[step + 1]))

    def of_lane(self, lane: int) -> Ints:
        """Return where the items of one lane lie, step by step."""
        places: Ints = self.offsets[: self._sizes[lane]] + lane
        return places
