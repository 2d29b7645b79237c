"""From the FP32 master weights to served precision: BF16, rounded to nearest, ties to even.

The result depends on the input bits alone, on every machine: torch rounds everything else alike
but turns a NaN into different BF16 NaNs on different processors, so NaNs are written here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import numpy as np
import torch

from skerry.codec.dtypes import Words
from skerry.publisher.arrays import Served, ServedTensor

_NAN = 0x7FC0  # the quiet NaN, whatever the sign and payload were
_LARGEST, _SMALLEST = 0x7F80, 0xFF80  # infinities: above them, as i16 and as u16, are NaNs alone
# Elements at a time.  On a CPU it is the most that torch takes on without its other threads:
# starting and joining them for each block costs many times the cast once other work has a core.
_CPU_BLOCK = 1 << 15
_DEVICE_BLOCK = 1 << 26
_CHECKED = 1 << 18  # what is still in the cache when its NaNs are looked for


def to_bf16(values: torch.Tensor) -> torch.Tensor:
    """Return an FP32 tensor as BF16, in its shape and on its device."""
    flat = values.detach().contiguous().view(-1)
    out = torch.empty(flat.shape, dtype=torch.bfloat16, device=values.device)
    round_into(out, flat)
    return out.view(values.shape)


def round_into(out: torch.Tensor, values: torch.Tensor) -> None:
    """Write FP32 values to `out`, as many of BF16; both are flat, contiguous, on one device."""
    if values.dtype != torch.float32:
        raise TypeError(f"the cast starts from float32, found {values.dtype}")
    on_cpu = values.device.type == "cpu"
    checked, copied = (_CHECKED, _CPU_BLOCK) if on_cpu else (_DEVICE_BLOCK, _DEVICE_BLOCK)
    for block, given in zip(torch.split(out, checked), torch.split(values, checked), strict=True):
        for to, piece in zip(torch.split(block, copied), torch.split(given, copied), strict=True):
            to.copy_(piece)
        bits = block.view(torch.int16)
        if not on_cpu or (
            bits.numel() and _has_nan(bits)
        ):  # a device is not asked: it would have to be waited for
            bits.masked_fill_(block.isnan(), _NAN)


def _has_nan(bits: torch.Tensor) -> bool:
    words = bits.numpy()
    largest, smallest = np.maximum.reduce(words), np.maximum.reduce(words.view(np.uint16))
    return bool(largest > _LARGEST or smallest > _SMALLEST)


def bf16_bits(values: torch.Tensor) -> Words:
    """Return the BF16 bits of an FP32 tensor as little-endian u16, in the tensor's shape."""
    bits: Words = to_bf16(values).cpu().view(torch.int16).numpy().view(np.uint16)
    return bits


def f32_bits(values: torch.Tensor) -> Words:
    """Return a copy of the bits of an FP32 tensor as little-endian u32, in the tensor's shape."""
    if values.dtype != torch.float32:
        raise TypeError(f"expected float32, found {values.dtype}")
    return values.detach().cpu().contiguous().numpy().view(np.uint32).copy()


def served_weights(
    parameters: Iterable[tuple[str, torch.Tensor]], *, keep: Collection[str] = ()
) -> dict[str, ServedTensor]:
    """Cast every parameter for serving, into host memory; those named in `keep` stay FP32.

    The arrays are copies: the optimizer may go on while they are published.
    """
    return {
        name: ServedTensor(dtype="F32", shape=tuple(values.shape), data=f32_bits(values))
        if name in keep
        else ServedTensor(dtype="BF16", shape=tuple(values.shape), data=bf16_bits(values))
        for name, values in parameters
    }


def served_on(
    device: torch.device, parameters: Iterable[tuple[str, torch.Tensor]]
) -> Mapping[str, Served]:
    """Cast every parameter for serving on `device`: arrays on the CPU, elsewhere tensors there.

    They are copies, too.
    """
    if device.type == "cpu":
        return served_weights(parameters)
    return {name: to_bf16(values.to(device)) for name, values in parameters}
