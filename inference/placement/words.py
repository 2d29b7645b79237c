"""Tensors as the integers that their bits are: what is compared and replaced, never floats."""

from __future__ import annotations

from collections.abc import Mapping

import torch

WORDS: Mapping[int, torch.dtype] = {
    1: torch.uint8,
    2: torch.int16,
    4: torch.int32,
    8: torch.int64,
}

# What safetensors calls them.  Packed types narrower than a byte have no flat elements in torch.
TORCH_DTYPES: Mapping[str, torch.dtype] = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I16": torch.int16,
    "U16": torch.uint16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "F32": torch.float32,
    "F64": torch.float64,
    "I64": torch.int64,
    "U64": torch.uint64,
}


def storage_words(tensor: torch.Tensor) -> torch.Tensor:
    """Return the whole storage of `tensor` as one row of integers, without a copy.

    Other tensors may share the storage: positions in it count from its start.
    """
    size = tensor.element_size()
    count = tensor.untyped_storage().nbytes() // size
    return torch.as_strided(tensor.detach(), (count,), (1,), 0).view(WORDS[size])
