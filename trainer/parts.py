"""Sharded tensors of a trainer as parts of served tensors, cast on the rank that holds them.

Rows of a shard that lie together are cast where they are to lie, when they are copied.

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
from skerry.publisher.sharding.plan import Producer
from skerry.trainer import fp8
from skerry.trainer.errors import Unservable
from skerry.trainer.precision import round_into, to_bf16
from skerry.trainer.served import (
    Form,
    RuleSet,
    Scales,
    check_castable,
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
        local = local_values(tensor)
        if not isinstance(tensor, DTensor):
            return cls(name=name, shape=whole, offset=(0,) * len(whole), values=local)
        if any(placement.is_partial() for placement in tensor.placements):
            raise Unservable(name, f"is placed as {tensor.placements}: reduce it first")
        shape, offset = compute_local_shape_and_global_offset(
            whole, tensor.device_mesh, tensor.placements
        )
        if tuple(shape) != tuple(local.shape):
            raise Unservable(name, f"expected a shard of {list(shape)}, found {list(local.shape)}")
        return cls(name=name, shape=whole, offset=tuple(offset), values=local)


def local_values(tensor: torch.Tensor) -> torch.Tensor:
    """Return what this rank holds of a DTensor, or a whole tensor, in the memory that it has."""
    from torch.distributed.tensor import DTensor

    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()


def serve_shards(rules: RuleSet, shards: Iterable[Shard], fabric: Fabric) -> list[TensorPart]:
    """Return this rank's shards as parts in served precision, by their rules.

    Parts may share the memory of the shards: they are what these are when they are copied.  A rank
    may hold any number of shards of a tensor, none, too.  Raises RankFailed, on every rank.
    """
    ordered = sorted(shards, key=lambda shard: (shard.name, shard.offset))
    rounded: dict[int, torch.Tensor] = {}  # by number in order, of what is to be quantised

    def grids() -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = {}
        for number, shard in enumerate(ordered):
            form = rules.form(shard.name)
            if form is Form.BF16:
                check_castable(shard.name, shard.values.dtype)
            elif form is Form.FP8_BLOCK:
                rounded[number] = round_to_bf16(shard.name, shard.values)
                grid = _grid(shard, rounded[number])
                found[shard.name] = torch.maximum(grid, found.get(shard.name, grid))
        return found

    scales = _scales(rules, agree(fabric, grids))
    parts: list[TensorPart] = []
    for number, shard in enumerate(ordered):
        if number in rounded:
            values = rounded.pop(number)
            scale = scales[shard.name][1].to(values.device)
            codes = fp8.quantise(values, shard.offset[0], scale)
            parts += flat_parts(shard, codes.view(torch.float8_e4m3fn))
        else:
            parts += flat_parts(shard, shard.values, rounds=rules.form(shard.name) is Form.BF16)
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


def flat_parts(shard: Shard, values: torch.Tensor, *, rounds: bool = False) -> list[TensorPart]:
    """Return a block's values as the flat ranges of the whole that they are; `rounds`: as BF16."""
    served = torch.bfloat16 if rounds else values.dtype
    dtype = as_served(shard.name, torch.empty(0, dtype=served)).dtype
    run = len(shard.shape)  # dimensions from here on are whole: a range is contiguous below them
    while run > 0 and values.shape[run - 1] == shard.shape[run - 1]:
        run -= 1
    outer = values.shape[: max(run - 1, 0)]
    if not values.numel():
        return [_part(shard.name, dtype, shard.shape, 0, np.empty(0, np.uint8))]
    start = _flat(shard.offset, shard.shape) * served.itemsize
    if prod(outer) == 1:
        made = _Made(values.contiguous().view(-1), rounds and values.dtype != served)
        return [_part(shard.name, dtype, shard.shape, start, made)]
    raw = as_served(shard.name, round_to_bf16(shard.name, values) if rounds else values).raw
    size = raw.size // prod(outer)
    parts = []
    for number, index in enumerate(np.ndindex(*outer)):
        place = [*(o + i for o, i in zip(shard.offset, index, strict=False))]
        place += shard.offset[len(place) :]
        start = _flat(place, shard.shape) * served.itemsize
        data = raw[number * size : (number + 1) * size]
        parts.append(_part(shard.name, dtype, shard.shape, start, data))
    return parts


class _Made:
    """The bytes of flat, contiguous values of any device, rounded to BF16 or as they are."""

    def __init__(self, values: torch.Tensor, rounds: bool) -> None:
        self._values = values
        self._rounds = rounds
        self._on_cpu = values.device.type == "cpu"
        self._word = torch.bfloat16.itemsize if rounds else values.element_size()

    @property
    def size(self) -> int:
        return self._values.numel() * self._word

    @property
    def by_any_thread(self) -> bool:
        return self._on_cpu  # of a device the stream is the thread's own

    def produce(self, start: int, stop: int, out: Bytes) -> None:
        values = self._values[start // self._word : stop // self._word]
        host = torch.from_numpy(out)
        if not self._on_cpu:
            host.copy_((to_bf16(values) if self._rounds else values).view(torch.uint8))
        elif self._rounds:
            round_into(host.view(torch.bfloat16), values)
        else:
            out[:] = values.view(torch.uint8).numpy()


def _part(
    name: str, dtype: str, shape: tuple[int, ...], start: int, data: Bytes | Producer
) -> TensorPart:
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
