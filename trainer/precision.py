"""From the FP32 master weights to served precision: BF16, rounded to nearest, ties to even.

The result depends on the input bits alone, on every machine: torch rounds everything else alike
but turns a NaN into different BF16 NaNs on different processors, so NaNs are written here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np
import torch

from skerry.codec.dtypes import Words
from skerry.publisher.arrays import ServedTensor

_NAN = 0x7FC0  # the quiet NaN, whatever the sign and payload were
_BLOCK = 1 << 20  # elements; a block's result is still in the cache when its NaNs are looked for


def bf16_bits(values: torch.Tensor) -> Words:
    """Return the BF16 bits of an FP32 tensor as little-endian u16, in the tensor's shape."""
    if values.dtype != torch.float32:
        raise TypeError(f"the cast starts from float32, found {values.dtype}")
    flat = values.detach().contiguous().view(-1)
    out = torch.empty(flat.shape, dtype=torch.bfloat16)
    for start in range(0, flat.numel(), _BLOCK):
        block = out[start : start + _BLOCK].copy_(flat[start : start + _BLOCK])
        nan = block.isnan()
        if nan.any():
            block.view(torch.int16)[nan] = _NAN
    bits: Words = out.view(torch.int16).numpy().view(np.uint16).reshape(tuple(values.shape))
    return bits


def f32_bits(values: torch.Tensor) -> Words:
    """Return a copy of the bits of an FP32 tensor as little-endian u32, in the tensor's shape."""
    if values.dtype != torch.float32:
        raise TypeError(f"expected float32, found {values.dtype}")
    return values.detach().contiguous().numpy().view(np.uint32).copy()


def served_weights(
    parameters: Iterable[tuple[str, torch.Tensor]], *, keep: Collection[str] = ()
) -> dict[str, ServedTensor]:
    """Cast every parameter for serving; the tensors named in `keep` stay FP32.

    The arrays are copies: the optimizer may go on while they are published.
    """
    return {
        name: ServedTensor(dtype="F32", shape=tuple(values.shape), data=f32_bits(values))
        if name in keep
        else ServedTensor(dtype="BF16", shape=tuple(values.shape), data=bf16_bits(values))
        for name, values in parameters
    }
