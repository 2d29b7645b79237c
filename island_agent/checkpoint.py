"""A checkpoint directory on disk: its shards mapped, its bytes compared with a layout.

Nothing outside the directory is ever read or written: links are refused, names come from a checked
layout.  Shards are changed in place, word by word; side files by an atomic rename.

Files are hashed and written by calls: a disk that is full or broken answers a call with an error,
but a map with SIGBUS.  Only decoding reads through maps.  Mapped pages count as this process's
memory although the kernel may take them back, so they are let go now and then: an agent looks, and
stays, as small as it is.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import numpy as np

from skerry.codec.digest import Bytes, Digest, digest_bytes, leaf_count
from skerry.codec.layout import Layout, Shard
from skerry.codec.pack import Pack, leaf_range
from skerry.codec.tensors import Positions, TensorChanges, TensorSpec
from skerry.codec.weights import WeightsDigest
from skerry.island_agent.errors import MirrorDamaged
from skerry.island_agent.files import (
    remove,
    sync_tree,
    tree_files,
    write_atomically,
)
from skerry.island_agent.hashing import UNREADABLE, Span, hash_spans
from skerry.island_agent.selection import Part
from skerry.publisher.replay import carried_file

_LET_GO_BYTES = 64 * 1024 * 1024
_RUN_BYTES = 1024 * 1024  # written by one call at most
_GAP_BYTES = 16 * 1024  # unchanged bytes between two words that are worth a call of their own


class Checkpoint:
    """The files of `layout` in `directory`.  Views stay valid after the files are renamed."""

    def __init__(self, directory: Path, layout: Layout, *, writable: bool = False) -> None:
        """Map every shard.

        Raises MirrorDamaged if one is missing or of the wrong size, and if `writable` OSError where
        one may not be written.
        """
        self.directory = directory
        self.layout = layout
        self._writable = writable
        self._maps = {shard.name: self._map(shard) for shard in layout.shards}
        self._shards: dict[str, Bytes] = {
            name: np.frombuffer(mapped, dtype=np.uint8) for name, mapped in self._maps.items()
        }
        self._read = 0

    def read(self, spec: TensorSpec) -> Bytes:
        """Return the bytes of one tensor, a view of the file."""
        self._read += spec.nbytes
        if self._read > _LET_GO_BYTES:
            self._let_go()
            self._read = spec.nbytes
        return self._shards[spec.file][spec.offset : spec.offset + spec.nbytes]

    def hash_leaves(
        self, wanted: Sequence[tuple[TensorSpec, Sequence[int]]]
    ) -> list[dict[int, Digest]]:
        """Hash leaves of some tensors as they lie in the files, by leaf number.

        A leaf that cannot be read is UNREADABLE.  Raises MirrorDamaged below a link, or OSError.
        """
        spans = [
            Span(path, spec.offset + start, spec.offset + stop)
            for spec, leaves in wanted
            for path in [self._path(spec.file)]
            for start, stop in [leaf_range(spec, leaf) for leaf in leaves]
        ]
        found = iter(hash_spans(spans))
        return [{leaf: next(found) for leaf in leaves} for _, leaves in wanted]

    def hash_weights(self) -> WeightsDigest:
        """Hash all leaves of all tensors as they lie in the files."""
        tensors = self.layout.tensors
        found = self.hash_leaves([(spec, range(leaf_count(spec.nbytes))) for spec in tensors])
        return WeightsDigest(
            tensors=tensors, leaves=tuple(tuple(leaves.values()) for leaves in found)
        )

    def write_words(self, changes: TensorChanges, *, backward: bool = False) -> None:
        """Put the new words (or the old ones) in place.  Idempotent.  Raises OSError."""
        spec, positions = changes.spec, changes.positions
        new = changes.old if backward else changes.new
        with self._writing(spec.file) as fd:
            for start, stop in _runs(positions, spec):
                first, last = int(positions[start]), int(positions[stop - 1])
                run, at = new[start:stop], spec.offset + first * spec.type.word
                if last - first >= run.size:  # words in between stay what they are
                    data = _read_all(fd, (last + 1 - first) * spec.type.word, at)
                    run = spec.view(np.frombuffer(data, np.uint8))
                    run[positions[start:stop] - first] = new[start:stop]
                _write_all(fd, np.ascontiguousarray(run).view(np.uint8).data, at)

    def write_headers(self, layout: Layout) -> None:
        """Put the header bytes of `layout`, which has the same structure, in place.  Idempotent."""
        for shard in layout.shards:
            if self.content(shard.name, 0, len(shard.header)) != shard.header:
                with self._writing(shard.name) as fd:
                    _write_all(fd, memoryview(shard.header), 0)

    def write_side_files(self, contents: Mapping[str, bytes | None], *, scratch: Path) -> None:
        """Replace or remove (None) whole side files.  Idempotent.  Raises MirrorDamaged.

        Removals come first: a directory's place may be taken by a file, and the other way round.
        """
        gone = [name for name, content in contents.items() if content is None]
        for path in map(self._path, gone):
            remove(path)
            _remove_empty_parents(path, self.directory)
        for name, content in contents.items():
            if content is not None:
                path = self._path(name)
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(path, content, scratch=scratch)

    def side_file(self, name: str) -> bytes | None:
        """Return a side file's content; None if there is no such plain file."""
        path = self._path(name)
        return path.read_bytes() if path.is_file() and not path.is_symlink() else None

    def write_range(self, file: str, offset: int, data: bytes) -> None:
        """Put bytes of a shard in place, durably.  Idempotent.  Raises MirrorDamaged."""
        shard = next((s for s in self.layout.shards if s.name == file), None)
        if shard is None or offset + len(data) > shard.size:
            raise MirrorDamaged(f"{file}: no {len(data)} bytes at {offset} to repair")
        with self._writing(file) as fd:
            _write_all(fd, memoryview(data), offset)
            os.fsync(fd)

    def content(self, file: str, offset: int | None, size: int) -> bytes:
        """Read bytes back from a file: all of it, or `size` from `offset` on."""
        with self._path(file).open("rb") as stored:
            stored.seek(offset or 0)
            return stored.read(size if offset is not None else -1)

    def sync(self) -> None:
        """Make every word and every name that was written durable."""
        for shard in self.layout.shards:
            fd = os.open(self.directory / shard.name, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        sync_tree(self.directory)

    def differences(self) -> list[str]:
        """Compare everything but the weights with the layout; one line per difference.

        Unexpected and missing files, sizes, header bytes, and side files by digest.
        """
        found = compare_files(self.directory, self.layout)
        if found:
            return found
        heads = [Span(self._path(s.name), 0, len(s.header)) for s in self.layout.shards]
        for shard, digest in zip(self.layout.shards, hash_spans(heads), strict=True):
            if digest != digest_bytes(shard.header):
                found.append(f"{shard.name}: header bytes differ")
        sides = [Span(self._path(s.name), 0, s.size) for s in self.layout.side_files]
        for side, digest in zip(self.layout.side_files, hash_spans(sides), strict=True):
            if digest != side.digest:
                found.append(f"{side.name}: content differs")
        return found

    def _let_go(self) -> None:
        """Unmap the pages that were read from memory; who still needs one gets it again."""
        for mapped in self._maps.values():
            mapped.madvise(mmap.MADV_DONTNEED)

    @contextmanager
    def _writing(self, file: str) -> Iterator[int]:
        fd = os.open(self._path(file), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            yield fd
        finally:
            os.close(fd)

    def _path(self, name: str) -> Path:
        """Return where a file of the layout lies.  Raises MirrorDamaged if a link leads there."""
        path = self.directory / name
        if any(parent.is_symlink() for parent in path.parents[: name.count("/")]):
            raise MirrorDamaged(f"{name}: below a link, expected a directory")
        return path

    def _map(self, shard: Shard) -> mmap.mmap:
        path = self._path(shard.name)
        if path.is_symlink():
            raise MirrorDamaged(f"{shard.name}: a link, expected a file")
        if not path.is_file():
            raise MirrorDamaged(f"{shard.name}: missing")
        flags = os.O_RDWR if self._writable else os.O_RDONLY
        fd = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            size = os.fstat(fd).st_size
            if size != shard.size:
                raise MirrorDamaged(f"{shard.name}: expected {shard.size} bytes, found {size}")
            return mmap.mmap(fd, size, access=mmap.ACCESS_READ)
        finally:
            os.close(fd)


def _runs(positions: Positions, spec: TensorSpec) -> Iterator[tuple[int, int]]:
    """Yield [start, stop) of ascending positions that one write is to cover."""
    gaps = np.flatnonzero(np.diff(positions) > _GAP_BYTES // spec.type.word) + 1
    longest = _RUN_BYTES // spec.type.word
    edges = np.searchsorted(positions, np.arange(longest, spec.words, longest))
    cuts = np.unique(np.concatenate([[0], gaps, edges, [positions.size]]))
    yield from pairwise(cuts.tolist())


def _read_all(fd: int, size: int, offset: int) -> bytearray:
    data = bytearray(size)
    left = memoryview(data)
    while left:
        got = os.preadv(fd, [left], offset)
        if not got:
            raise OSError(errno.EIO, "the file ends before its size")
        left, offset = left[got:], offset + got
    return data


def _write_all(fd: int, data: memoryview, offset: int) -> None:
    while data:
        done = os.pwrite(fd, data, offset)
        data, offset = data[done:], offset + done


def compare_files(directory: Path, layout: Layout) -> list[str]:
    """Compare the set of files and their sizes with the layout; one line per difference."""
    expected, found = dict(layout.files()), tree_files(directory)
    lines = []
    for name in sorted(expected.keys() | found.keys()):
        if name not in expected:
            lines.append(f"{name}: unexpected file")
        elif name not in found:
            lines.append(f"{name}: missing")
        elif found[name] is None:
            lines.append(f"{name}: no plain file")
        elif found[name] != expected[name]:
            lines.append(f"{name}: expected {expected[name]} bytes, found {found[name]}")
    return lines


def weight_differences(
    checkpoint: Checkpoint, weights: WeightsDigest, part: Part | None = None
) -> list[str]:
    """Hash every tensor of the directory, or of a part of it, against `weights`.

    Returns one line per leaf that differs.
    """
    wanted = [
        (spec, range(len(expected)) if part is None else part.of(spec))
        for spec, expected in zip(weights.tensors, weights.leaves, strict=True)
    ]
    found = checkpoint.hash_leaves(wanted)
    return [
        f"{spec.file}: tensor {spec.name}: leaf {index} "
        + ("cannot be read" if leaf == UNREADABLE else "differs")
        for (spec, _), leaves, expected in zip(wanted, found, weights.leaves, strict=True)
        for index, leaf in leaves.items()
        if leaf != expected[index]
    ]


def changed_side_files(old: Layout, new: Layout, packs: Sequence[Pack]) -> dict[str, bytes | None]:
    """Return the side files that lead from `old` to `new`: content, or None for a removed one.

    Of several packs that carry one, the last counts.  Raises ResultMismatch if none does, or the
    content is not what `new` says; FormatError if it is damaged or no file can have its name.
    """
    before = {side.name: side.digest for side in old.side_files}
    after = {side.name for side in new.side_files}
    changed: dict[str, bytes | None] = {name: None for name in before if name not in after}
    for side in new.side_files:
        if before.get(side.name) != side.digest:
            changed[side.name] = carried_file(packs, side)
    return changed


def _remove_empty_parents(path: Path, root: Path) -> None:
    for parent in path.parents:
        if parent == root or parent.is_file() or (parent.is_dir() and any(parent.iterdir())):
            return
        remove(parent)
