"""Who holds what, who owns which leaf, and which bytes have to move: pure, and the same everywhere.

Law: every byte of every tensor has exactly one source, the lowest rank that holds it; a tensor with
a byte that nobody holds is refused.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Protocol

import numpy as np

from skerry.codec.digest import LEAF_BYTES, Bytes
from skerry.codec.header import tensor_bytes
from skerry.codec.layout import Layout
from skerry.publisher.checkpoint import Arranged, arrange
from skerry.publisher.errors import ShardMismatch

Leaf = tuple[int, int]  # tensor, a number in the layout's table; leaf number


class Producer(Protocol):
    """Bytes that are made where they are to lie, as by a cast: nothing in between is kept."""

    @property
    def size(self) -> int: ...

    @property
    def by_any_thread(self) -> bool:
        """Whether several threads may produce pieces at a time; if not, the caller's alone does."""
        ...

    def produce(self, start: int, stop: int, out: Bytes) -> None:
        """Write bytes [start, stop) to `out`; both are borders of words."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorPart:
    """Bytes of a tensor from `start` on, in served precision; `shape` is that of the whole.

    `data` may share the memory of the weights: it is what they are when it is copied.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    data: Bytes | Producer

    def copy(self, start: int, stop: int, out: Bytes) -> None:
        """Write its bytes [start, stop), counted from its own first one, to `out`."""
        if isinstance(self.data, np.ndarray):
            out[:] = self.data[start:stop]
        else:
            self.data.produce(start, stop, out)

    @property
    def by_any_thread(self) -> bool:
        return isinstance(self.data, np.ndarray) or self.data.by_any_thread

    @property
    def held(self) -> Held:
        return Held(
            name=self.name,
            dtype=self.dtype,
            shape=self.shape,
            start=self.start,
            stop=self.start + self.data.size,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A part without its bytes: what a rank says once."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Bytes [start, stop) of one leaf, which lie at rank `source` and go to its `owner`."""

    tensor: int
    start: int
    stop: int
    source: int
    owner: int

    @property
    def leaf(self) -> Leaf:
        return self.tensor, self.start // LEAF_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardPlan:
    """`routes` ascend by tensor and start, and cover every byte once; `owners` has each leaf's."""

    arranged: Arranged
    routes: Sequence[Route]
    owners: Mapping[Leaf, int]

    @property
    def layout(self) -> Layout:
        return self.arranged.layout


def plan_shards(
    held: Sequence[Sequence[Held]],
    *,
    side_files: Mapping[str, bytes] | None = None,
    recipe: Mapping[str, object] | None = None,
    max_shard_bytes: int = 5_000_000_000,
) -> ShardPlan:
    """Return the plan for what each rank holds, by rank.  Raises ShardMismatch."""
    tensors: dict[str, tuple[str, tuple[int, ...]]] = {}
    ranges: dict[str, list[tuple[int, int, int]]] = {}
    for rank, items in enumerate(held):
        for item in items:
            found = tensors.setdefault(item.name, (item.dtype, item.shape))
            if found != (item.dtype, item.shape):
                rule = f"{item.dtype} {list(item.shape)} at rank {rank}, {found[0]} "
                raise ShardMismatch(item.name, f"{rule}{list(found[1])} before it")
            nbytes = tensor_bytes(item.name, item.dtype, item.shape)
            if not 0 <= item.start <= item.stop <= nbytes:
                rule = f"rank {rank} holds [{item.start}, {item.stop}) of {nbytes} bytes"
                raise ShardMismatch(item.name, rule)
            ranges.setdefault(item.name, []).append((item.start, rank, item.stop))
    arranged = arrange(
        tensors, side_files=side_files, recipe=recipe, max_shard_bytes=max_shard_bytes
    )
    _check_disjoint(ranges)
    routes: list[Route] = []
    for number, spec in enumerate(arranged.layout.tensors):
        pieces = _by_leaf(_sources(spec.name, sorted(ranges[spec.name]), spec.nbytes))
        for _, group in groupby(pieces, key=lambda piece: piece[1] // LEAF_BYTES):
            leaf = list(group)
            owner = min(rank for rank, _, _ in leaf)
            routes += [
                Route(tensor=number, start=start, stop=stop, source=rank, owner=owner)
                for rank, start, stop in leaf
            ]
    owners = {route.leaf: route.owner for route in routes}
    return ShardPlan(arranged=arranged, routes=routes, owners=owners)


def _check_disjoint(ranges: Mapping[str, Sequence[tuple[int, int, int]]]) -> None:
    """Two parts of one rank that overlap could disagree: refused.  Of two ranks they are copies."""
    for name, items in ranges.items():
        of_rank = sorted((rank, start, stop) for start, rank, stop in items if start < stop)
        for (rank, _, stop), (other, start, _) in pairwise(of_rank):
            if rank == other and start < stop:
                raise ShardMismatch(name, f"rank {rank} holds byte {start} twice")


def _sources(
    name: str, ranges: Sequence[tuple[int, int, int]], nbytes: int
) -> Iterator[tuple[int, int, int]]:
    """Yield (rank, start, stop) for the whole tensor: each byte at the lowest rank that has it."""
    waiting = iter([*ranges, (nbytes, 0, nbytes)])
    start, rank, stop = next(waiting)
    covering: list[tuple[int, int]] = []
    at = 0
    while at < nbytes:
        while start <= at:
            heapq.heappush(covering, (rank, stop))
            start, rank, stop = next(waiting)
        while covering and covering[0][1] <= at:
            heapq.heappop(covering)
        if not covering:
            raise ShardMismatch(name, f"no rank holds bytes [{at}, {start})")
        until = min(covering[0][1], start)  # a lower rank may begin there
        yield covering[0][0], at, until
        at = until


def _by_leaf(pieces: Iterator[tuple[int, int, int]]) -> Iterator[tuple[int, int, int]]:
    """Yield the pieces cut at the borders of leaves."""
    for rank, start, stop in pieces:
        while start < stop:
            cut = min(stop, (start // LEAF_BYTES + 1) * LEAF_BYTES)
            yield rank, start, cut
            start = cut
