"""BF16 weights to block-scaled FP8 (E4M3), whole or by rows: the arithmetic and nothing else.

A block is 128 by 128 elements.  In FP32, with `amax` the largest magnitude of a block:

    scale = max(amax, 1e-4) / 448           UE8M0: rounded up to a power of two
    code  = e4m3(x * (1 / scale))           to nearest, ties to even, at most 448

This is DeepGEMM's cast, operation by operation: a division instead of the multiplication by the
reciprocal gives other bytes.  Law: any split of a tensor into rows gives the bytes of the whole,
once the amax grids of its parts are joined by their maximum.
"""

from __future__ import annotations

import torch

BLOCK = 128
LARGEST = 448.0  # of E4M3
LEAST_AMAX = 1e-4


def grid_shape(shape: tuple[int, int]) -> tuple[int, int]:
    """Return how many blocks a matrix has, down and across."""
    return -(-shape[0] // BLOCK), -(-shape[1] // BLOCK)


def block_amax(rows: torch.Tensor, first_row: int, shape: tuple[int, int]) -> torch.Tensor:
    """Return the largest magnitudes in each block, FP32, of the `rows` [n, columns] of a matrix.

    The grid is that of the whole matrix of `shape`; blocks without a row here have 0.
    """
    down, across = grid_shape(shape)
    grid = torch.zeros(down, across, dtype=torch.float32, device=rows.device)
    if not rows.numel():
        return grid
    padded = torch.nn.functional.pad(rows.abs(), (0, across * BLOCK - shape[1]))
    of_row = padded.view(-1, across, BLOCK).amax(2).float()
    blocks = _blocks(first_row, rows)[:, None].expand_as(of_row)
    return grid.scatter_reduce_(0, blocks, of_row, "amax")


def scales(amax: torch.Tensor, *, power_of_two: bool) -> torch.Tensor:
    """Return the scale of each block, FP32: what a code is multiplied by to get the weight."""
    scale = amax.clamp(LEAST_AMAX) / LARGEST
    if not power_of_two:
        return scale
    bits = scale.view(torch.int32)
    exponent = (bits >> 23) + ((bits & 0x7F_FFFF) != 0).int()
    return (exponent.clamp(1, 254) << 23).view(torch.float32)


def e8m0(scale: torch.Tensor) -> torch.Tensor:
    """Return scales that are powers of two as their exponent bytes."""
    return (scale.view(torch.int32) >> 23).to(torch.uint8)


def quantise(rows: torch.Tensor, first_row: int, scale: torch.Tensor) -> torch.Tensor:
    """Return the codes, uint8 [n, columns], of the BF16 `rows` of a matrix with this scale grid.

    The rows must be finite.
    """
    inverse = (1.0 / scale)[_blocks(first_row, rows)]  # [n, blocks across]
    factor = inverse.repeat_interleave(BLOCK, 1)[:, : rows.shape[1]]
    scaled = (rows.float() * factor).clamp(-LARGEST, LARGEST)  # versions of torch saturate or not
    return scaled.to(torch.float8_e4m3fn).view(torch.uint8)


def _blocks(first_row: int, rows: torch.Tensor) -> torch.Tensor:
    """Return the number of the block that each row lies in, from the top."""
    stop = first_row + rows.shape[0]
    return torch.arange(first_row, stop, device=rows.device) // BLOCK
