"""One strided box of a checkpoint tensor, and the strided box of a parameter that it is copied to.

Law: `Box.find` is the inverse of the copy: an element of the tensor is found where the loader wrote
it, and an element that the loader left out is not found.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A box of `shape`: its element (i, j, ...) is at `start + (i, j, ...) . strides` of `tensor`,
    flat, and at `at + (i, j, ...) . steps` of the storage of `parameter`."""

    tensor: str
    start: int
    strides: tuple[int, ...]
    shape: tuple[int, ...]
    parameter: str
    at: int
    steps: tuple[int, ...]

    @property
    def words(self) -> int:
        return math.prod(self.shape)

    @property
    def is_run(self) -> bool:
        """Whether the box is one run of elements on both sides."""
        return _is_run(self.shape, self.strides) and _is_run(self.shape, self.steps)

    @property
    def last(self) -> int:
        """The highest element of the tensor that is in the box."""
        return self.start + _span(self.shape, self.strides)

    @property
    def end(self) -> int:
        """The highest word of the parameter's storage that is in the box."""
        return self.at + _span(self.shape, self.steps)

    @property
    def is_injective(self) -> bool:
        """Whether no element stands for two words, nor a word for two elements.

        A broadcast copy (stride 0) is not: replacing one element would be several writes.
        """
        return _is_injective(self.shape, self.strides) and _is_injective(self.shape, self.steps)

    def find(self, positions: torch.Tensor) -> tuple[torch.Tensor | slice, torch.Tensor]:
        """Return which of `positions` (ascending, int64, flat) are in the box, and where they are.

        The first is an index into `positions`, the second words of the parameter's storage.
        """
        bounds = torch.tensor([self.start, self.last + 1], device=positions.device)
        low, high = torch.searchsorted(positions, bounds).tolist()
        near = positions[low:high]
        if self.is_run:
            return slice(low, high), near + (self.at - self.start)
        rest = near - self.start
        where = torch.full_like(near, self.at)
        inside = torch.ones_like(near, dtype=torch.bool)
        for size, stride, step in self._axes():
            index = torch.div(rest, stride, rounding_mode="floor")
            rest = rest - index * stride
            inside &= index < size
            where += index * step
        inside &= rest == 0
        return torch.nonzero(inside).view(-1) + low, where[inside]

    def _axes(self) -> list[tuple[int, int, int]]:
        """Return the axes longer than 1, the longest stride first: flat index digits."""
        axes = zip(self.shape, self.strides, self.steps, strict=True)
        return sorted((a for a in axes if a[0] > 1), key=lambda axis: -axis[1])


def _span(shape: Sequence[int], strides: Sequence[int]) -> int:
    return sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))


def _is_run(shape: Sequence[int], strides: Sequence[int]) -> bool:
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _is_injective(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Say whether the axes nest: each stride passes over all that the shorter ones reach."""
    reached = 0
    axes = (a for a in zip(strides, shape, strict=True) if a[1] > 1)
    for stride, size in sorted(axes):
        if stride <= reached:
            return False
        reached += stride * (size - 1)
    return True
