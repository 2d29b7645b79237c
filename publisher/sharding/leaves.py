"""One rank's leaves: collected from the ranks that hold their bytes, compared, encoded, proven."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from skerry.codec import kernel
from skerry.codec.digest import LEAF_BYTES, Bytes, Digest, digest_bytes
from skerry.codec.encode import EncodedPack, ScannedChunk, encode_scanned, scan_chunk
from skerry.codec.level import Level
from skerry.codec.pack import Pack, leaf_range
from skerry.codec.parallel import ordered
from skerry.codec.scan import CHUNK_WORDS
from skerry.publisher.errors import ShardMismatch, VerifyFailed
from skerry.publisher.sharding.fabric import Fabric
from skerry.publisher.sharding.plan import Leaf, Route, ShardPlan, TensorPart

Leaves = Mapping[Leaf, Bytes]
Digests = Mapping[Leaf, Digest]


class Parts:
    """The bytes that this rank holds, by tensor and place."""

    def __init__(self, plan: ShardPlan, parts: Sequence[TensorPart]) -> None:
        self._names = [spec.name for spec in plan.layout.tensors]
        self._of: dict[str, list[TensorPart]] = {}
        for part in sorted(parts, key=lambda part: (part.name, part.start)):
            self._of.setdefault(part.name, []).append(part)

    def copy(self, route: Route, out: Bytes) -> None:
        """Write a route's bytes to `out`.  Raises ShardMismatch if this rank lacks them."""
        name, at = self._names[route.tensor], route.start
        parts = self._of.get(name, [])
        number = bisect_right(parts, at, key=lambda part: part.start) - 1
        for part in parts[max(number, 0) :]:
            stop = min(route.stop, part.start + part.data.size)
            if not part.start <= at < stop:
                break
            out[at - route.start : stop - route.start] = part.data[
                at - part.start : stop - part.start
            ]
            at = stop
        if at != route.stop:
            raise ShardMismatch(name, f"bytes [{at}, {route.stop}) are not there any more")


def outgoing(plan: ShardPlan, fabric: Fabric, parts: Sequence[TensorPart]) -> list[Bytes]:
    """Return what this rank sends to each owner: copies, in the order of the routes."""
    held = Parts(plan, parts)
    mine = [route for route in plan.routes if route.source == fabric.rank]
    sizes = [0] * fabric.size
    for route in mine:
        sizes[route.owner] += route.stop - route.start
    buffers = [np.empty(size, np.uint8) for size in sizes]
    filled = [0] * fabric.size
    for route in mine:
        begin = filled[route.owner]
        filled[route.owner] = stop = begin + route.stop - route.start
        held.copy(route, buffers[route.owner][begin:stop])
    return buffers


def collect(plan: ShardPlan, fabric: Fabric, sent: Sequence[Bytes]) -> dict[Leaf, Bytes]:
    """Exchange what `outgoing` gave; return the leaves that this rank owns."""
    mine = [route for route in plan.routes if route.owner == fabric.rank]
    sizes = [0] * fabric.size
    for route in mine:
        sizes[route.source] += route.stop - route.start
    received = fabric.exchange(sent, sizes)
    taken = [0] * fabric.size
    leaves: dict[Leaf, Bytes] = {}
    for route in mine:
        leaf = leaves.get(route.leaf)
        if leaf is None:
            start, stop = leaf_range(plan.layout.tensors[route.tensor], route.leaf[1])
            leaf = leaves[route.leaf] = np.empty(stop - start, np.uint8)
        begin, size = taken[route.source], route.stop - route.start
        taken[route.source] = begin + size
        at = route.start % LEAF_BYTES
        leaf[at : at + size] = received[route.source][begin : begin + size]
    return leaves


def digest_leaves(leaves: Leaves) -> dict[Leaf, Digest]:
    """Hash each leaf."""
    return {leaf: digest_bytes(data) for leaf, data in leaves.items()}


def encode_leaves(
    plan: ShardPlan,
    old: Leaves,
    new: Leaves,
    digests: Digests,
    *,
    base: Digest,
    level: Level,
    threads: int,
) -> EncodedPack | None:
    """Return the patch of this rank's leaves, None if none changed.

    `base` is the digest of the whole version that `old` is a part of.
    """
    specs = plan.layout.tensors

    def scan(leaf: Leaf) -> list[ScannedChunk | None]:
        tensor, number = leaf
        spec = specs[tensor]
        before, after = spec.view(old[leaf]), spec.view(new[leaf])
        first = number * LEAF_BYTES // spec.type.word
        return [
            scan_chunk(
                tensor,
                first + start,
                before[start : start + CHUNK_WORDS],
                after[start : start + CHUNK_WORDS],
                spec.type,
                level,
            )
            for start in range(0, before.size, CHUNK_WORDS)
        ]

    chunks = [
        chunk
        for found in ordered(scan, sorted(new), threads)
        for chunk in found
        if chunk is not None
    ]
    if not chunks:
        return None
    return encode_scanned(
        plan.layout,
        chunks,
        lambda tensor, leaf: digests[tensor, leaf],
        base=base,
        level=level,
        threads=threads,
    )


def prove_leaves(
    plan: ShardPlan,
    encoded: EncodedPack | None,
    old: Leaves,
    before: Digests,
    after: Digests,
    *,
    threads: int,
) -> None:
    """Decode this rank's patch against its `old` leaves, which have the digests `before`.

    Raises VerifyFailed unless every leaf then has the digest `after` of the new bytes.
    """
    found = dict(before)
    if encoded is not None:
        pack = Pack.parse(encoded.data, plan.layout)
        touched = [(tensor, leaf) for tensor, leaves in pack.leaves.items() for leaf in leaves]
        patch = partial(_patched, plan, pack, old)
        found.update(zip(touched, ordered(patch, touched, threads), strict=True))
    for leaf, expected in after.items():
        if found[leaf] != expected:
            raise VerifyFailed(expected=expected, found=found[leaf])


def _patched(plan: ShardPlan, pack: Pack, old: Leaves, leaf: Leaf) -> Digest:
    """Return the digest of a leaf after the patch."""
    spec = plan.layout.tensors[leaf[0]]
    words = spec.view(old[leaf].copy())
    first = leaf[1] * LEAF_BYTES // spec.type.word
    chunks = pack.leaves[leaf[0]][leaf[1]].chunks
    starts = [chunk.entry.start - first for chunk in chunks]
    views = [
        words[start : start + chunk.entry.count]
        for start, chunk in zip(starts, chunks, strict=True)
    ]
    for view, (positions, bits) in zip(views, pack.decode(chunks, views), strict=True):
        kernel.current().apply(view, positions, bits)
    return digest_bytes(words.view(np.uint8))
