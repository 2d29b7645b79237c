"""Patches over their base: one or several consecutive packs as one set of changes.

`fold_changes` equals the direct comparison of the last version with the base: a word that a later
patch puts back is no change.  Weights are read a group of tensors at a time and never written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from skerry.codec.digest import LEAF_BYTES, Bytes, Digest, digest_bytes
from skerry.codec.errors import ResultMismatch, StructureMismatch
from skerry.codec.layout import Layout
from skerry.codec.pack import LEAF_CHECK_BYTES, Pack, leaf_range
from skerry.codec.tensors import Read, TensorChanges, TensorSpec

_GROUP_BYTES = 128 * 1024 * 1024


def fold_changes(layout: Layout, packs: Sequence[Pack], base: Read) -> Iterator[TensorChanges]:
    """Yield the changes of each tensor that `packs`, one after another, change from `base`.

    Tensors come in the layout's order with their leaves hashed, those that end unchanged not at
    all.  Raises FormatError
    for a damaged payload, ResultMismatch when the last pack's leaf checks disagree.
    """
    for pack in packs:
        if pack.tensors != layout.tensors:
            raise StructureMismatch("a pack was parsed against another structure")
    touched = sorted({tensor for pack in packs for tensor in pack.changed_tensors()})
    for group in _groups(layout, touched):
        bases = [base(layout.tensors[tensor]) for tensor in group]
        folded = _fold_group(packs, group, bases)
        for tensor, changes, before in zip(group, folded, bases, strict=True):
            leaves = patched_leaves(before, changes)
            _check_leaves(packs, tensor, before, changes.spec, leaves)
            if changes.positions.size:
                yield replace(changes, leaves=leaves)


def patched_leaves(base: Bytes, changes: TensorChanges) -> dict[int, Digest]:
    """Return the digests of the leaves that `changes` touch, as they are after the change.

    `base` are the tensor's bytes before; at most one leaf is copied at a time.
    """
    spec = changes.spec
    leaf_words = LEAF_BYTES // spec.type.word
    result = {}
    for leaf in np.unique(changes.positions // leaf_words):
        start, stop = leaf_range(spec, int(leaf))
        words = spec.view(base[start:stop].copy())
        first, last = np.searchsorted(
            changes.positions, (leaf * leaf_words, (leaf + 1) * leaf_words)
        )
        words[changes.positions[first:last] - leaf * leaf_words] = changes.new[first:last]
        result[int(leaf)] = digest_bytes(words.view(np.uint8))
    return result


def _fold_group(
    packs: Sequence[Pack], group: Sequence[int], bases: Sequence[Bytes]
) -> list[TensorChanges]:
    if len(packs) == 1:
        return packs[0].decode(group, bases)
    copies = [base.copy() for base in bases]
    for pack in packs:
        for changes, copy in zip(pack.decode(group, copies), copies, strict=True):
            changes.spec.view(copy)[changes.positions] = changes.new
    results = []
    for tensor, base, copy in zip(group, bases, copies, strict=True):
        spec = packs[0].tensors[tensor]
        old, new = spec.view(base), spec.view(copy)
        positions = np.flatnonzero(old != new)
        results.append(
            TensorChanges(spec=spec, positions=positions, old=old[positions], new=new[positions])
        )
    return results


def _check_leaves(
    packs: Sequence[Pack],
    tensor: int,
    base: Bytes,
    spec: TensorSpec,
    leaves: Mapping[int, Digest],
) -> None:
    """Compare every leaf that a pack speaks of with the check of the last one that does.

    A leaf that ends unchanged is checked too: its chunk may be damaged into saying so.
    """
    checks: dict[int, bytes] = {}
    for pack in packs:
        checks.update(pack.leaf_checks.get(tensor, {}))
    for leaf, check in checks.items():
        start, stop = leaf_range(spec, leaf)
        digest = leaves.get(leaf) or digest_bytes(base[start:stop])
        found = digest[: 2 * LEAF_CHECK_BYTES]
        if found != check.hex():
            raise ResultMismatch(
                what=f"leaf {leaf} of {spec.name}", expected=check.hex(), found=found
            )


def _groups(layout: Layout, tensors: Sequence[int]) -> Iterator[list[int]]:
    group: list[int] = []
    held = 0
    for tensor in tensors:
        nbytes = layout.tensors[tensor].nbytes
        if group and held + nbytes > _GROUP_BYTES:
            yield group
            group, held = [], 0
        group.append(tensor)
        held += nbytes
    if group:
        yield group
