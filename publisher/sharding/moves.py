"""What one rank does at every step with the bytes that it has: where each goes, found once."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from skerry.codec.digest import LEAF_BYTES, Bytes
from skerry.codec.pack import leaf_range
from skerry.codec.parallel import ordered
from skerry.publisher.errors import ShardMismatch
from skerry.publisher.sharding.buffers import Buffers
from skerry.publisher.sharding.fabric import Fabric, agree
from skerry.publisher.sharding.plan import Leaf, Route, ShardPlan, TensorPart

Leaves = Mapping[Leaf, Bytes]

_AT_ONCE = 4  # pieces that a thread copies in a row; of a layer most are small
_ALIGNED = 64  # bytes: a leaf begins where vectors do


class Moves:
    """Takes copies of what a rank owns: its own bytes straight to their leaves, others' by mail."""

    def __init__(self, plan: ShardPlan, fabric: Fabric, *, threads: int) -> None:
        rank, size = fabric.rank, fabric.size
        self._rank = rank
        self._threads = threads
        self._names = [spec.name for spec in plan.layout.tensors]
        self._place: dict[Leaf, slice] = {}
        self._out: list[list[Route]] = [[] for _ in range(size)]  # by owner
        self._in: list[list[Route]] = [[] for _ in range(size)]  # by source
        end = 0
        for route in plan.routes:
            if route.source == rank:
                self._out[route.owner].append(route)
            if route.owner != rank:
                continue
            self._in[route.source].append(route)
            if route.leaf not in self._place:
                first, last = leaf_range(plan.layout.tensors[route.tensor], route.leaf[1])
                self._place[route.leaf] = slice(end, end + last - first)
                end += -(-(last - first) // _ALIGNED) * _ALIGNED
        self._incoming = [
            0 if source == rank else _bytes(routes) for source, routes in enumerate(self._in)
        ]
        self._leaves = Buffers(end)
        self._mail = [
            Buffers(0 if owner == rank else _bytes(routes))
            for owner, routes in enumerate(self._out)
        ]

    def take(self, fabric: Fabric, parts: Sequence[TensorPart]) -> Leaves:
        """Return copies of this rank's leaves.  Raises RankFailed on every rank; PeerLost.

        The fabric is one of the same ranks.
        """
        memory = self._leaves.take()
        leaves = {leaf: memory[place] for leaf, place in self._place.items()}
        mail = [buffers.take() for buffers in self._mail]
        agree(fabric, lambda: self._copy(_Held(self._names, parts), leaves, mail))
        received = fabric.exchange(mail, self._incoming)
        for routes, data in zip(self._in, received, strict=True):
            if data.size:
                begin = 0
                for route in routes:
                    stop = begin + route.stop - route.start
                    _within(leaves, route)[:] = data[begin:stop]
                    begin = stop
        return leaves

    def _copy(self, held: _Held, leaves: Leaves, mail: Sequence[Bytes]) -> None:
        pieces: list[_Piece] = []
        for owner, routes in enumerate(self._out):
            begin = 0
            for route in routes:
                if owner == self._rank:
                    out = _within(leaves, route)
                else:
                    stop = begin + route.stop - route.start
                    out, begin = mail[owner][begin:stop], stop
                pieces += held.pieces(route, out)
        shared = [piece for piece in pieces if piece.part.by_any_thread]
        for _ in ordered(_Piece.copy, shared, self._threads, at_once=_AT_ONCE):
            pass
        for piece in pieces:
            if not piece.part.by_any_thread:
                piece.copy()


@dataclass(frozen=True, slots=True)
class _Piece:
    """Bytes [start, stop) of a part, and where they are to lie."""

    part: TensorPart
    start: int
    stop: int
    out: Bytes

    def copy(self) -> None:
        self.part.copy(self.start, self.stop, self.out)


class _Held:
    """The bytes that this rank holds, by tensor and place."""

    def __init__(self, names: Sequence[str], parts: Sequence[TensorPart]) -> None:
        self._names = names
        self._of: dict[str, list[TensorPart]] = {}
        for part in sorted(parts, key=lambda part: (part.name, part.start)):
            self._of.setdefault(part.name, []).append(part)

    def pieces(self, route: Route, out: Bytes) -> Iterator[_Piece]:
        """Yield what makes up a route's bytes.  Raises ShardMismatch if this rank lacks them."""
        name, at = self._names[route.tensor], route.start
        parts = self._of.get(name, [])
        number = bisect_right(parts, at, key=lambda part: part.start) - 1
        for part in parts[max(number, 0) :]:
            stop = min(route.stop, part.start + part.data.size)
            if not part.start <= at < stop:
                break
            place = out[at - route.start : stop - route.start]
            yield _Piece(part, at - part.start, stop - part.start, place)
            at = stop
        if at != route.stop:
            raise ShardMismatch(name, f"bytes [{at}, {route.stop}) are not there any more")


def _bytes(routes: Sequence[Route]) -> int:
    return sum(route.stop - route.start for route in routes)


def _within(leaves: Leaves, route: Route) -> Bytes:
    """Return where a route's bytes lie in its leaf."""
    at = route.start % LEAF_BYTES
    return leaves[route.leaf][at : at + route.stop - route.start]
