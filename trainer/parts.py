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

    A rank may hold any number of shards of a tensor, none, too.  Raises RankFailed, on every rank.
    """
    ordered = sorted(shards, key=lambda shard: (shard.name, shard.offset))
    rounded: list[torch.Tensor] = []

    def grids() -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = {}
        for shard in ordered:
            form = rules.form(shard.name)
            keep = form is Form.KEEP
            rounded.append(shard.values if keep else round_to_bf16(shard.name, shard.values))
            if form is Form.FP8_BLOCK:
                grid = _grid(shard, rounded[-1])
                found[shard.name] = torch.maximum(grid, found.get(shard.name, grid))
        return found

    scales = _scales(rules, agree(fabric, grids))
    parts: list[TensorPart] = []
    for shard, values in zip(ordered, rounded, strict=True):
        if shard.name in scales:
            scale = scales[shard.name][1].to(values.device)
            codes = fp8.quantise(values, shard.offset[0], scale)
            parts += flat_parts(shard, codes.view(torch.float8_e4m3fn))
        else:
            parts += flat_parts(shard, values.clone() if values is shard.values else values)
    for name, (holder, scale) in scales.items():
        if fabric.rank == holder:  # every rank has made the same ones
            stored = as_served(rules.scale_name(name), stored_scales(rules, scale))
            parts.append(_part(rules.scale_name(name), stored.dtype, stored.shape, 0, stored.raw))
    return parts


def _scales(
    rules: RuleSet, gathered: Sequence[dict[str, torch.Tensor]]
) -> dict[str, tuple[int, torch.Tensor]]:
    """Return the scales of each block-scaled matrix, and the lowest rank that has some of it."""
    found: dict[str, tuple[int, torch.Tensor]] = {}
    for name in sorted(set().union(*gathered)):
        holders = [rank for rank, grids in enumerate(gathered) if name in grids]
        amax = torch.stack([gathered[rank][name] for rank in holders]).amax(0)
        scale = fp8.scales(amax, power_of_two=rules.scales is not Scales.F32)
        found[name] = holders[0], scale
    return found


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
