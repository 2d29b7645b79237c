"""One rank's leaves: digested, compared, encoded, proven.

Each leaf is hashed by one thread, of those that are asked for: a hash that takes more takes them
from all of the process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from skerry.codec import kernel
from skerry.codec.digest import LEAF_BYTES, Digest, digest_bytes
from skerry.codec.encode import EncodedPack, ScannedChunk, encode_scanned, scan_chunk
from skerry.codec.level import Level
from skerry.codec.pack import Pack
from skerry.codec.parallel import ordered
from skerry.codec.scan import CHUNK_WORDS
from skerry.publisher.errors import VerifyFailed
from skerry.publisher.sharding.moves import Leaves
from skerry.publisher.sharding.plan import Leaf, ShardPlan

Digests = Mapping[Leaf, Digest]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A rank's leaves of one version, and their digests."""

    leaves: Leaves
    digests: Digests


def measure(leaves: Leaves, *, threads: int) -> Snapshot:
    """Hash each leaf."""
    digests = ordered(lambda data: digest_bytes(data, threads=1), leaves.values(), threads)
    return Snapshot(leaves=leaves, digests=dict(zip(leaves, digests, strict=True)))


def encode_leaves(
    plan: ShardPlan,
    old: Snapshot,
    new: Leaves,
    *,
    base: Digest,
    level: Level,
    threads: int,
) -> tuple[Snapshot, EncodedPack | None]:
    """Return the new leaves with their digests, and their patch, None if none changed.

    `base` is the digest of the whole version that `old` is a part of.  A leaf that did not change
    is compared, and not hashed.
    """
    specs = plan.layout.tensors

    def scan(leaf: Leaf) -> tuple[Digest, list[ScannedChunk]]:
        tensor, number = leaf
        spec = specs[tensor]
        before, after = spec.view(old.leaves[leaf]), spec.view(new[leaf])
        first = number * LEAF_BYTES // spec.type.word
        found = (
            scan_chunk(
                tensor,
                first + start,
                before[start : start + CHUNK_WORDS],
                after[start : start + CHUNK_WORDS],
                spec.type,
                level,
            )
            for start in range(0, before.size, CHUNK_WORDS)
        )
        chunks = [chunk for chunk in found if chunk is not None]
        return digest_bytes(new[leaf], threads=1) if chunks else old.digests[leaf], chunks

    order = sorted(new)
    scanned = list(ordered(scan, order, threads))
    digests = {leaf: digest for leaf, (digest, _) in zip(order, scanned, strict=True)}
    snapshot = Snapshot(leaves=new, digests=digests)
    chunks = [chunk for _, found in scanned for chunk in found]
    if not chunks:
        return snapshot, None
    pack = encode_scanned(
        plan.layout,
        chunks,
        lambda tensor, leaf: digests[tensor, leaf],
        base=base,
        level=level,
        threads=threads,
    )
    return snapshot, pack


def prove_leaves(
    plan: ShardPlan,
    encoded: EncodedPack | None,
    old: Snapshot,
    new: Digests,
    *,
    threads: int,
) -> None:
    """Decode this rank's patch against its old leaves.

    Raises VerifyFailed unless every leaf then has the digest of its `new` bytes.
    """
    found = dict(old.digests)
    if encoded is not None:
        pack = Pack.parse(encoded.data, plan.layout)
        touched = [(tensor, leaf) for tensor, leaves in pack.leaves.items() for leaf in leaves]
        patch = partial(_patched, plan, pack, old.leaves)
        found.update(zip(touched, ordered(patch, touched, threads), strict=True))
    for leaf, expected in new.items():
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
    return digest_bytes(words.view(np.uint8), threads=1)
