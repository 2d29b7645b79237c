"""What this rank holds of each HF tensor: found once, read from the weights at every step.

Nothing is communicated, and of rows that lie in order nothing is copied here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

import torch
from torch import nn

from skerry.trainer.errors import Unservable
from skerry.trainer.parts import Shard, local_values
from skerry.trainer.titan.rows import HfTensor, native_tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Rows that follow one another in an HF tensor, from row `at`; `start` and `stop` are those
    of the rows that were chosen of the local tensor.
    """

    at: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What one local tensor has of one HF tensor: the rows `chosen` of it, in the order of `runs`.

    `column` is where they begin in the HF tensor's rows.
    """

    tensor: HfTensor
    native: str
    chosen: slice | torch.Tensor
    column: int
    runs: tuple[Run, ...]


class LocalShards:
    """The shards of one rank; `model_parts` are more than one under pipeline parallelism."""

    def __init__(self, model_parts: Sequence[nn.Module], tensors: Sequence[HfTensor]) -> None:
        """Raises Unservable for a tensor that is placed in a way that has no such shards."""
        self._parts = model_parts
        self._pieces = [
            list(_pieces({n: Shard.of(n, t) for n, t in native_tensors(part).items()}, tensors))
            for part in model_parts
        ]

    def now(self) -> Iterator[Shard]:
        """Yield the shards as the weights are now; they may share the weights' memory."""
        for part, pieces in zip(self._parts, self._pieces, strict=True):
            local = {n: _by_rows(local_values(t)) for n, t in native_tensors(part).items()}
            for piece in pieces:
                rows = local[piece.native][piece.chosen]
                for run in piece.runs:
                    yield _shard(piece, run, rows[run.start : run.stop])


def _shard(piece: Piece, run: Run, rows: torch.Tensor) -> Shard:
    shape = piece.tensor.shape
    vector = len(shape) == 1
    return Shard(
        name=piece.tensor.name,
        shape=shape,
        offset=(run.at,) if vector else (run.at, piece.column),
        values=rows[:, 0] if vector else rows,
    )


def _pieces(blocks: dict[str, Shard], tensors: Sequence[HfTensor]) -> Iterator[Piece]:
    place = {name: _places(block) for name, block in blocks.items()}
    for tensor in tensors:
        for origin in tensor.origins:
            block = blocks.get(origin.native)
            if block is None:
                continue  # in another part of the pipeline
            if block.shape != origin.native_shape:
                rule = f"expected shape {list(origin.native_shape)}, found {list(block.shape)}"
                raise Unservable(origin.native, f"{rule}: sharded, but no DTensor")
            local = place[origin.native][origin.rows]
            held = local >= 0
            if held.any():
                yield Piece(
                    tensor=tensor,
                    native=origin.native,
                    chosen=_choice(local[held]),
                    column=block.offset[-1] if len(block.shape) > 1 else 0,
                    runs=tuple(_runs(origin.at[held])),
                )


def _places(block: Shard) -> torch.Tensor:
    """Return, for each row of the whole tensor, its number in the block, -1 where it has none."""
    leading = len(block.shape) - 1 or 1
    ids = torch.zeros(1, dtype=torch.int64)
    for extent, first, count in zip(
        block.shape[:leading], block.offset, block.values.shape, strict=False
    ):
        ids = (ids[:, None] * extent + torch.arange(first, first + count)).reshape(-1)
    places = torch.full((prod(block.shape[:leading]),), -1)
    if block.values.numel():
        places[ids] = torch.arange(ids.numel())
    return places


def _choice(local: torch.Tensor) -> slice | torch.Tensor:
    first = int(local[0])
    if torch.equal(local, torch.arange(first, first + local.numel())):
        return slice(first, first + local.numel())
    return local


def _runs(at: torch.Tensor) -> Iterator[Run]:
    breaks = ((at[1:] - at[:-1]) != 1).nonzero()[:, 0] + 1
    bounds = [0, *breaks.tolist(), at.numel()]
    for start, stop in pairwise(bounds):
        yield Run(at=int(at[start]), start=start, stop=stop)


def _by_rows(values: torch.Tensor) -> torch.Tensor:
    return values.reshape(-1, values.shape[-1] if values.dim() > 1 else 1)
