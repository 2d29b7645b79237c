"""Sharded tensors of a trainer as parts of served tensors, cast on the rank that holds them.

A shard is a block of rows and columns.  Rounding to BF16 is elementwise, so a shard is cast alone.
Of a block-scaled matrix the ranks share the amax grid, 1/16384 of the tensor, and nothing else: the
codes are those of the whole matrix, byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import torch

from skerry.codec.digest import Bytes
from skerry.publisher.arrays import as_served
from skerry.publisher.sharding import Fabric, TensorPart
from skerry.publisher.sharding.fabric import agree
from skerry.trainer import fp8
from skerry.trainer.errors import Unservable
from skerry.trainer.served import (
    Form,
    RuleSet,
    Scales,
    finite,
    matrix_shape,
    round_to_bf16,
    stored_scales,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """A rank's block of a tensor under its HF name: `values` lie at `offset` of the `shape`."""

    name: str
    shape: tuple[int, ...]
    offset: tuple[int, ...]
    values: torch.Tensor

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor) -> Shard:
        """Return what this rank holds of a DTensor, or a whole tensor."""
        from torch.distributed.tensor import DTensor
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

        whole = tuple(tensor.shape)
        if not isinstance(tensor, DTensor):
            return cls(name=name, shape=whole, offset=(0,) * len(whole), values=tensor.detach())
        if any(placement.is_partial() for placement in tensor.placements):
            raise Unservable(name, f"is placed as {tensor.placements}: reduce it first")
        local = tensor.to_local().detach()
        shape, offset = compute_local_shape_and_global_offset(
            whole, tensor.device_mesh, tensor.placements
        )
        if tuple(shape) != tuple(local.shape):
            raise Unservable(name, f"expected a shard of {list(shape)}, found {list(local.shape)}")
        return cls(name=name, shape=whole, offset=tuple(offset), values=local)


def serve_shards(rules: RuleSet, shards: Iterable[Shard], fabric: Fabric) -> list[TensorPart]:
    """Cast this rank's shards by their rules, into copies in host memory.

    Every rank gives shards of the same tensors, in any order, where it holds nothing an empty one.
    Raises RankFailed, on every rank.
    """
    ordered = sorted(shards, key=lambda shard: shard.name)
    rounded: dict[str, torch.Tensor] = {}

    def grids() -> dict[str, torch.Tensor]:
        found = {}
        for shard in ordered:
            form = rules.form(shard.name)
            if form is not Form.KEEP:
                rounded[shard.name] = round_to_bf16(shard.name, shard.values)
            if form is Form.FP8_BLOCK:
                found[shard.name] = _grid(shard, rounded[shard.name])
        return found

    gathered = agree(fabric, grids)
    parts: list[TensorPart] = []
    for shard in ordered:
        form = rules.form(shard.name)
        if form is Form.FP8_BLOCK:
            amax = torch.stack([grid[shard.name] for grid in gathered]).amax(0)
            parts += _quantised(rules, shard, rounded[shard.name], amax, fabric)
        else:
            parts += flat_parts(shard, rounded.get(shard.name, shard.values).clone())
    return parts


def flat_parts(shard: Shard, served: torch.Tensor, name: str | None = None) -> list[TensorPart]:
    """Return a block's values, in served precision, as the flat ranges of the whole they are."""
    name = name or shard.name
    if not served.numel():
        tensor = as_served(name, served)
        return [_part(name, tensor.dtype, shard.shape, 0, tensor.raw)]
    tensor = as_served(name, served)
    raw, word = tensor.raw, served.element_size()
    run = len(shard.shape)  # dimensions from here on are whole: a range is contiguous below them
    while run > 0 and served.shape[run - 1] == shard.shape[run - 1]:
        run -= 1
    outer = served.shape[: max(run - 1, 0)]
    size = raw.size // max(prod(outer), 1)
    parts = []
    for number, index in enumerate(np.ndindex(*outer)):
        place = [*(o + i for o, i in zip(shard.offset, index, strict=False))]
        place += shard.offset[len(place) :]
        start = _flat(place, shard.shape) * word
        data = raw[number * size : (number + 1) * size]
        parts.append(_part(name, tensor.dtype, shard.shape, start, data))
    return parts


def _part(name: str, dtype: str, shape: tuple[int, ...], start: int, data: Bytes) -> TensorPart:
    return TensorPart(name=name, dtype=dtype, shape=shape, start=start, data=data)


def _flat(place: Sequence[int], shape: Sequence[int]) -> int:
    flat = 0
    for index, extent in zip(place, shape, strict=True):
        flat = flat * extent + index
    return flat


def _grid(shard: Shard, values: torch.Tensor) -> torch.Tensor:
    """Return the amax grid of the whole matrix, as far as this shard knows it."""
    rows, columns = matrix_shape(shard.name, values)
    if values.numel() and columns != shard.shape[1]:
        raise Unservable(
            shard.name, f"block-scaled are shards of whole rows, found {[rows, columns]}"
        )
    finite(shard.name, values)
    return fp8.block_amax(values, shard.offset[0], (shard.shape[0], shard.shape[1])).cpu()


def _quantised(
    rules: RuleSet, shard: Shard, values: torch.Tensor, amax: torch.Tensor, fabric: Fabric
) -> list[TensorPart]:
    scale = fp8.scales(amax, power_of_two=rules.scales is not Scales.F32)
    codes = fp8.quantise(values, shard.offset[0], scale.to(values.device))
    parts = flat_parts(shard, codes.view(torch.float8_e4m3fn))
    name = rules.scale_name(shard.name)
    if fabric.rank == 0:  # every rank has made the same ones
        tensor = as_served(name, stored_scales(rules, scale))
        parts.append(_part(name, tensor.dtype, tensor.shape, 0, tensor.raw))
    return parts
