"""One patch install into a mirror: decode and check first, then record, then write in place.

`stage` touches no byte of the mirror.  `redo` replaces words by recorded ones, so repeating it is
harmless; `undo` is its mirror image.  The order of steps is stated in `hooks`.
"""

from __future__ import annotations

import logging
import mmap
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from skerry.codec.digest import Digest
from skerry.codec.errors import BaseMismatch, ResultMismatch, StructureMismatch
from skerry.codec.fold import fold_changes
from skerry.codec.layout import Layout, describe_difference
from skerry.codec.pack import Pack
from skerry.codec.weights import WeightsDigest
from skerry.island_agent.checkpoint import Checkpoint, changed_side_files
from skerry.island_agent.errors import MirrorDamaged
from skerry.island_agent.files import remove
from skerry.island_agent.hooks import TENSOR_DECODED, TENSOR_WRITTEN, Hook
from skerry.island_agent.journal import Journal
from skerry.island_agent.journal_writer import JournalWriter
from skerry.island_agent.marker import Held, Marker
from skerry.island_agent.plan import PatchStep
from skerry.island_agent.state import State

logger = logging.getLogger(__name__)

Leaves = Mapping[str, Mapping[int, Digest]]  # by tensor name and leaf number

_NONE: Leaves = MappingProxyType({})


def load_packs(steps: Sequence[PatchStep], spool: Path, layout: Layout) -> tuple[Pack, ...]:
    """Parse the spooled packs of consecutive steps, each checked to start where the last one ended.

    Packs stay in their files and are mapped, so a chain of any length takes memory for its indexes
    alone.  Raises BaseMismatch, or FormatError.
    """
    packs = []
    for step in steps:
        for ref in step.packs:
            pack = Pack.parse(mapped(spool / ref.digest), layout)
            if pack.base != step.base:
                raise BaseMismatch(expected=pack.base, found=step.base)
            packs.append(pack)
    return tuple(packs)


def mapped(path: Path) -> memoryview:
    """Return a file's content as a view that takes no memory."""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size == 0:
            return memoryview(b"")
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return memoryview(mapped)


def stage(
    state: State,
    checkpoint: Checkpoint,
    weights: WeightsDigest,
    marker: Marker,
    *,
    packs: Sequence[Pack],
    target: Held,
    layout: Layout,
    hook: Hook,
    threads: int = 1,
    foreign: Leaves = _NONE,
) -> Journal:
    """Decode `packs` against the mirror and make the install record durable (steps 2 and 3).

    Memory: a copy of one leaf (16 MiB) for each thread (of 128 MiB on the NumPy kernel), the
    changes of one tensor and of a few leaves ahead of it, and side files.  `foreign` are changed
    leaves that this mirror has no bytes of.  Raises BaseMismatch, StructureMismatch, ResultMismatch
    or FormatError; then nothing has changed.
    """
    origin = marker.held
    assert origin is not None
    if packs and packs[0].base != origin.weights:
        raise BaseMismatch(expected=packs[0].base, found=origin.weights)
    if difference := describe_difference(checkpoint.layout, layout):
        raise StructureMismatch(difference)
    record = state.places.install_record
    with JournalWriter(record, run=marker.run, origin=origin, target=target) as writer:
        leaves: dict[str, Mapping[int, Digest]] = dict(foreign)
        decoded = fold_changes(checkpoint.layout, packs, checkpoint.read, threads=threads)
        for changes in decoded:
            writer.add_tensor(changes, changes.leaves)
            leaves[changes.spec.name] = {**leaves.get(changes.spec.name, {}), **changes.leaves}
            hook(TENSOR_DECODED)
        result = weights.replace(leaves)
        check_result(result, target)
        for name, content in changed_side_files(checkpoint.layout, layout, packs).items():
            writer.add_file(name, checkpoint.side_file(name), content)
        state.put(target, layout, result)
        hook("decoded")
        writer.finish()
    hook("journal-durable")
    journal = Journal.open(record, checkpoint.layout)
    journal.written_s = writer.seconds
    return journal


def redo(
    state: State, checkpoint: Checkpoint, journal: Journal, layout: Layout, *, hook: Hook
) -> None:
    """Write what the record says, check it, move the marker (steps 4 to 6).  Idempotent.

    Raises MirrorDamaged if the mirror does not hold what was written: the old version was then put
    back, or, where that failed too, the marker says that nothing sound is held.
    """
    for changes in journal.changes:
        checkpoint.write_words(changes)
        hook(TENSOR_WRITTEN)
    checkpoint.write_headers(layout)
    checkpoint.write_side_files(journal.new_files, scratch=state.places.state)
    checkpoint.sync()
    hook("words-written")
    found = hash_leaves(checkpoint, journal)
    if found != journal.leaves:
        wrong = sorted(name for name in found if found[name] != journal.leaves[name])
        undo(state, checkpoint, journal)
        raise MirrorDamaged(f"{wrong[0]} differs after writing version {journal.target.version}")
    hook("leaves-checked")
    state.set_marker(Marker(run=journal.run, held=journal.target))
    logger.info(
        "mirror moved version=%d weights=%s", journal.target.version, journal.target.weights
    )
    hook("marker-moved")


def undo(state: State, checkpoint: Checkpoint, journal: Journal) -> None:
    """Put the old words back; if they are not what they were, say that nothing sound is held.

    The marker is written before the record goes: a reader in between must see either of them.
    """
    for changes in journal.changes:
        checkpoint.write_words(changes, backward=True)
    checkpoint.write_headers(state.layout(journal.origin.layout))
    checkpoint.write_side_files(journal.old_files, scratch=state.places.state)
    checkpoint.sync()
    found = state.weights(journal.origin).replace(hash_leaves(checkpoint, journal))
    sound = found.version() == journal.origin.weights
    state.set_marker(Marker(run=journal.run, held=journal.origin if sound else None))
    remove(state.places.install_record)
    logger.warning("install undone version=%d sound=%s", journal.origin.version, sound)


def write_in_place(
    checkpoint: Checkpoint,
    weights: WeightsDigest,
    *,
    packs: Sequence[Pack],
    target: Held,
    layout: Layout,
    scratch: Path,
    hook: Hook,
    threads: int = 1,
    foreign: Leaves = _NONE,
) -> WeightsDigest:
    """Patch a directory that nobody reads yet, without a record; return the new leaf digests.

    Takes and raises as `stage`; the directory is then no version at all, and its owner throws it
    away.
    """
    if difference := describe_difference(checkpoint.layout, layout):
        raise StructureMismatch(difference)
    written: dict[str, Mapping[int, Digest]] = dict(foreign)
    decoded = fold_changes(checkpoint.layout, packs, checkpoint.read, threads=threads)
    for changes in decoded:
        checkpoint.write_words(changes)
        (hashed,) = checkpoint.hash_leaves([(changes.spec, list(changes.leaves))])
        written[changes.spec.name] = {**written.get(changes.spec.name, {}), **hashed}
        hook(TENSOR_WRITTEN)
    result = weights.replace(written)
    check_result(result, target)
    checkpoint.write_headers(layout)
    changed = changed_side_files(checkpoint.layout, layout, packs)
    checkpoint.write_side_files(changed, scratch=scratch)
    checkpoint.sync()
    return result


def check_result(result: WeightsDigest, target: Held) -> None:
    """Raises ResultMismatch unless the weights are those of `target`."""
    found = result.version()
    if found != target.weights:
        what = f"weights of version {target.version}"
        raise ResultMismatch(what=what, expected=target.weights, found=found)


def hash_leaves(checkpoint: Checkpoint, journal: Journal) -> dict[str, dict[int, Digest]]:
    """Hash, from the directory, every leaf that the record touches."""
    found = checkpoint.hash_leaves(
        [(spec, list(journal.leaves[spec.name])) for spec in journal.specs]
    )
    return {spec.name: leaves for spec, leaves in zip(journal.specs, found, strict=True)}
