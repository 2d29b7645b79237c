"""Orders that a backend puts its weights into, found by sending indices through its packer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

Pack = Callable[[torch.Tensor], torch.Tensor]

_LOW = 0xFFFF


@dataclass(frozen=True, slots=True)
class Permutation:
    """Element i of each block of `inverse.numel()` is stored at `inverse[i]` of that block."""

    inverse: torch.Tensor  # [block], int32 or int64

    def apply(self, words: torch.Tensor) -> torch.Tensor:
        """Return where the elements at `words` (flat, int64) are stored."""
        block = self.inverse.numel()
        first = torch.div(words, block, rounding_mode="floor") * block
        return first + self.inverse[words - first]


class NoPermutation(ValueError):
    """The packer does more than change the order."""


def discover(shape: Sequence[int], pack: Pack) -> Permutation:
    """Return the permutation that `pack` makes of 16-bit elements in `shape`.

    Two tensors are packed, whose bits are the halves of each element's own index: what comes out
    is the permutation itself.  Raises NoPermutation.
    """
    count = math.prod(shape)
    index = torch.arange(count, dtype=torch.int64)

    def packed(half: torch.Tensor) -> torch.Tensor:
        coded = half.to(torch.int32).to(torch.uint16).view(torch.bfloat16).view(tuple(shape))
        found = pack(coded)
        if found.dtype != torch.bfloat16 or found.numel() != count:
            raise NoPermutation(
                f"{count} elements of bfloat16 became {found.numel()} {found.dtype}"
            )
        return found.contiguous().view(torch.uint16).view(-1).to(torch.int64)

    order = packed(index & _LOW) | (packed(index >> 16) << 16)
    if not torch.equal(torch.sort(order).values, index):
        raise NoPermutation("some index came out twice")
    inverse = torch.empty_like(order)
    inverse[order] = index
    return Permutation(inverse.to(torch.int32) if count < 2**31 else inverse)
