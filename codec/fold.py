"""Patches over their base: one or several consecutive packs as one set of changes.

`fold_changes` equals the direct comparison of the last version with the base: a word that a later
patch puts back is no change.  Work goes leaf by leaf: beside the packs, a thread holds one leaf of
weights, 16 MiB, and the changes of one or two (nine bytes and the word, old and new, for each).
The base is never written but by `apply_pack`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TypeVar

import numpy as np

from skerry.codec import kernel
from skerry.codec.digest import LEAF_BYTES, Bytes, Digest, digest_bytes
from skerry.codec.dtypes import Words
from skerry.codec.encode import EncodedPack, ScannedChunk, encode_scanned, scan_chunk
from skerry.codec.errors import ResultMismatch, StructureMismatch
from skerry.codec.layout import Layout
from skerry.codec.level import Level
from skerry.codec.pack import LEAF_CHECK_BYTES, Pack, PackedChunk, leaf_range
from skerry.codec.parallel import ordered
from skerry.codec.rates import Ints
from skerry.codec.scan import CHUNK_WORDS
from skerry.codec.tensors import Read, TensorChanges, TensorSpec

Result = TypeVar("Result")

_LOCKSTEP_BYTES = 128 * 1024 * 1024  # of leaves that a kernel which works in step is given at once


def fold_changes(
    layout: Layout, packs: Sequence[Pack], base: Read, *, threads: int = 1
) -> Iterator[TensorChanges]:
    """Yield the changes of each tensor that `packs`, one after another, change from `base`.

    Tensors come in the layout's order with their leaves hashed, those that end unchanged not at
    all; `base` is called once for each tensor, from this thread.  Raises FormatError for a damaged
    payload, ResultMismatch when the last pack's leaf checks disagree.
    """
    results = _each_leaf(partial(_changes, packs), layout, packs, base, threads)
    for tensor, group in groupby(results, key=lambda result: result.leaf.tensor):
        found = [result for result in group if result.positions.size]
        if found:
            yield TensorChanges(
                spec=layout.tensors[tensor],
                positions=np.concatenate([result.positions for result in found]),
                old=np.concatenate([result.old for result in found]),
                new=np.concatenate([result.new for result in found]),
                leaves={result.leaf.number: result.digest for result in found},
            )


def fold_packs(
    layout: Layout,
    packs: Sequence[Pack],
    base: Read,
    *,
    level: Level = Level.DEFAULT,
    threads: int = 1,
    files: Mapping[str, bytes] | None = None,
) -> EncodedPack:
    """Return one pack that does what `packs` do one after another: the direct patch, byte for byte.

    `files` are those that the pack is to carry.  Raises as `fold_changes` does.
    """
    digests: dict[tuple[int, int], Digest] = {}

    def chunks() -> Iterator[ScannedChunk]:
        scan = partial(_scanned, packs, level)
        for leaf, digest, scanned in _each_leaf(scan, layout, packs, base, threads):
            digests[leaf.tensor, leaf.number] = digest
            yield from scanned

    return encode_scanned(
        layout,
        chunks(),
        lambda tensor, leaf: digests[tensor, leaf],
        base=packs[0].base,
        files=files,
        level=level,
        threads=threads,
    )


def apply_pack(
    layout: Layout, pack: Pack, buffer: Callable[[TensorSpec], Bytes], *, threads: int = 1
) -> int:
    """Patch in place the bytes that `buffer` returns for each tensor; return the number of changes.

    Nothing is hashed: the caller compares the result with a digest that it trusts.  Raises
    FormatError for a damaged payload, when a part of the patch may have been applied.
    """
    return sum(_each_leaf(partial(_apply, pack), layout, [pack], buffer, threads))


@dataclass(frozen=True, slots=True)
class _Leaf:
    """One leaf of the base: `data` are its bytes, a view."""

    tensor: int
    number: int
    spec: TensorSpec
    data: Bytes

    @property
    def first(self) -> int:
        """The leaf's first word."""
        return self.number * LEAF_BYTES // self.spec.type.word

    def part(self, words: Words, chunk: PackedChunk) -> Words:
        """Return the part of the leaf's `words` that a chunk covers."""
        start = chunk.entry.start - self.first
        return words[start : start + chunk.entry.count]


@dataclass(frozen=True, slots=True, kw_only=True)
class _LeafChanges:
    """What changed in a leaf: positions in the tensor, old and new bits; the leaf's new digest."""

    leaf: _Leaf
    positions: Ints
    old: Words
    new: Words
    digest: Digest


def _each_leaf(
    work: Callable[[Sequence[_Leaf]], Sequence[Result]],
    layout: Layout,
    packs: Sequence[Pack],
    base: Read,
    threads: int,
) -> Iterator[Result]:
    """Yield what `work` returns for each leaf that a pack touches, in the layout's order."""
    for pack in packs:
        if pack.tensors != layout.tensors:
            raise StructureMismatch("a pack was parsed against another structure")
    lockstep = kernel.current().lockstep
    groups = _groups(_touched(layout, packs, base), _LOCKSTEP_BYTES if lockstep else 0)
    for results in ordered(work, groups, 1 if lockstep else threads):
        yield from results


def _touched(layout: Layout, packs: Sequence[Pack], base: Read) -> Iterator[_Leaf]:
    for tensor in sorted({tensor for pack in packs for tensor in pack.leaves}):
        spec = layout.tensors[tensor]
        data = base(spec)
        if data.size != spec.nbytes:
            raise StructureMismatch(f"{spec.name}: {spec.nbytes} bytes expected, found {data.size}")
        for leaf in sorted({leaf for pack in packs for leaf in pack.leaves.get(tensor, ())}):
            start, stop = leaf_range(spec, leaf)
            yield _Leaf(tensor, leaf, spec, data[start:stop])


def _groups(leaves: Iterable[_Leaf], most_bytes: int) -> Iterator[list[_Leaf]]:
    group: list[_Leaf] = []
    held = 0
    for leaf in leaves:
        if group and held + leaf.data.size > most_bytes:
            yield group
            group, held = [], 0
        group.append(leaf)
        held += leaf.data.size
    if group:
        yield group


def _changes(packs: Sequence[Pack], leaves: Sequence[_Leaf]) -> list[_LeafChanges]:
    results = []
    for leaf, words, only in _patched(packs, leaves):
        before = leaf.spec.view(leaf.data)
        # What a single pack changes need not be looked for.
        positions = kernel.current().find_changes(before, words) if only is None else only
        results.append(
            _LeafChanges(
                leaf=leaf,
                positions=positions + leaf.first,
                old=before[positions],
                new=words[positions],
                digest=_checked(packs, leaf, words),
            )
        )
    return results


def _scanned(
    packs: Sequence[Pack], level: Level, leaves: Sequence[_Leaf]
) -> list[tuple[_Leaf, Digest, list[ScannedChunk]]]:
    results = []
    for leaf, words, _ in _patched(packs, leaves):
        before = leaf.spec.view(leaf.data)
        chunks = (
            scan_chunk(
                leaf.tensor,
                leaf.first + start,
                before[start : start + CHUNK_WORDS],
                words[start : start + CHUNK_WORDS],
                leaf.spec.type,
                level,
            )
            for start in range(0, words.size, CHUNK_WORDS)
        )
        found = [chunk for chunk in chunks if chunk is not None]
        results.append((leaf, _checked(packs, leaf, words), found))
    return results


def _patched(
    packs: Sequence[Pack], leaves: Sequence[_Leaf]
) -> Iterator[tuple[_Leaf, Words, Ints | None]]:
    """Yield each leaf with its words after all packs, and what changed if there is just one."""
    copies = [leaf.spec.view(leaf.data.copy()) for leaf in leaves]
    positions: list[Ints | None] = [None] * len(leaves)
    for pack in packs:
        found = _decode(pack, leaves, copies)
        if len(packs) == 1:
            positions = [*found]
    yield from zip(leaves, copies, positions, strict=True)


def _apply(pack: Pack, leaves: Sequence[_Leaf]) -> list[int]:
    words = [leaf.spec.view(leaf.data) for leaf in leaves]
    return [positions.size for positions in _decode(pack, leaves, words)]


def _decode(pack: Pack, leaves: Sequence[_Leaf], words: Sequence[Words]) -> list[Ints]:
    """Apply what the pack has for each leaf to its `words`; return where, counted in the leaf."""
    work = [(i, chunk) for i, leaf in enumerate(leaves) for chunk in _chunks_of(pack, leaf)]
    parts = [leaves[i].part(words[i], chunk) for i, chunk in work]
    results = pack.decode([chunk for _, chunk in work], parts)
    found: list[list[Ints]] = [[np.zeros(0, np.int64)] for _ in leaves]
    for (i, chunk), part, (positions, new) in zip(work, parts, results, strict=True):
        kernel.current().apply(part, positions, new)
        found[i].append(positions + (chunk.entry.start - leaves[i].first))
    return [np.concatenate(positions) for positions in found]


def _chunks_of(pack: Pack, leaf: _Leaf) -> Sequence[PackedChunk]:
    packed = pack.leaves.get(leaf.tensor, {}).get(leaf.number)
    return () if packed is None else packed.chunks


def _checked(packs: Sequence[Pack], leaf: _Leaf, words: Words) -> Digest:
    """Return a leaf's digest after all packs; the last that speaks of it must agree.

    A leaf that ends unchanged is checked too: its chunk may be damaged into saying so.
    """
    found = digest_bytes(words.view(np.uint8))
    check = next(
        pack.leaves[leaf.tensor][leaf.number].check
        for pack in reversed(packs)
        if leaf.number in pack.leaves.get(leaf.tensor, {})
    )
    if found[: 2 * LEAF_CHECK_BYTES] != check.hex():
        raise ResultMismatch(
            what=f"leaf {leaf.number} of {leaf.spec.name}",
            expected=check.hex(),
            found=found[: 2 * LEAF_CHECK_BYTES],
        )
    return found
