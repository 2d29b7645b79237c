"""A pack: the chunks of one patch in one object, with what is needed to check each leaf.

    offset  size
    0       8     magic "SKRYPACK"
    8       4     u32 format version, 1
    12      4     u32 size of the index as stored
    16      32    digest of the version that the patch is for, its base
    48            the index, one zstd frame
                  leaf checks: 4 bytes for each leaf that a chunk lies in, in order
                  files, then chunks, each in the order of the index, without gaps

A leaf check is the start of the leaf's digest *after* the patch.  It says which leaf went wrong;
that nothing did is for the version's own digest to say.  All integers are little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from skerry.codec import kernel
from skerry.codec.compress import decompress
from skerry.codec.context import Coded
from skerry.codec.digest import LEAF_BYTES, Digest, leaf_count
from skerry.codec.dtypes import Words
from skerry.codec.errors import FormatError, LimitExceeded
from skerry.codec.index import ChunkEntry, Mode, PackIndex, parse_index
from skerry.codec.layout import Layout
from skerry.codec.planes import decode_planes, decode_raw
from skerry.codec.rates import Ints
from skerry.codec.tensors import TensorSpec

MAGIC = b"SKRYPACK"
FORMAT = 1
HEADER = struct.Struct("<8sII32s")
LEAF_CHECK_BYTES = 4
MAX_INDEX_BYTES = 256 * 1024 * 1024  # unpacked

Keep = Callable[[int, int], bool]  # whether a leaf, by tensor and leaf number, is wanted


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedChunk:
    """A chunk's place and settings, and its payload as stored."""

    entry: ChunkEntry
    payload: memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedLeaf:
    """The chunks that lie in one leaf, ascending, and the start of its digest after the patch."""

    check: bytes
    chunks: Sequence[PackedChunk]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackFront:
    """What the start of a pack says: its index, and where everything after that lies.

    `ends[0]` is the end of the index; then come the ends of each leaf check, file and chunk.
    """

    base: Digest
    index: PackIndex
    places: Sequence[tuple[int, int]]
    tensors: Sequence[TensorSpec]
    ends: Sequence[int]

    @staticmethod
    def size(head: bytes | memoryview, pack_bytes: int) -> int:
        """Return how long the front of a pack is, given its first HEADER.size bytes or more.

        Raises FormatError.
        """
        if len(head) < HEADER.size:
            raise FormatError(f"a pack has at least {HEADER.size} bytes, found {len(head)}")
        magic, version, index_size, _ = HEADER.unpack_from(head)
        if magic != MAGIC:
            raise FormatError(f"a pack starts with {MAGIC!r}, found {magic!r}", offset=0)
        if version != FORMAT:
            raise FormatError(f"pack format {FORMAT} expected, found {version}", offset=8)
        if HEADER.size + index_size > pack_bytes:
            rule = f"an index of {index_size} bytes in a pack of {pack_bytes}"
            raise FormatError(rule, offset=12)
        return HEADER.size + int(index_size)

    @classmethod
    def parse(cls, data: bytes | memoryview, layout: Layout, pack_bytes: int) -> PackFront:
        """Parse the front of a pack of so many bytes; `data` may end after it.

        Raises FormatError.
        """
        at = cls.size(data, pack_bytes)
        base = HEADER.unpack_from(data)[3]
        index_bytes = decompress(bytes(memoryview(data)[HEADER.size : at]), MAX_INDEX_BYTES)
        index = parse_index(index_bytes, layout.tensors, pack_bytes - at)
        places = leaves_of(index.chunks, layout.tensors)
        sizes = [LEAF_CHECK_BYTES] * len(places)
        sizes += [file.stored for file in index.files]
        sizes += [chunk.size for chunk in index.chunks]
        ends = [at]
        for size in sizes:
            ends.append(ends[-1] + size)
        if ends[-1] != pack_bytes:
            raise FormatError(f"the index describes {ends[-1]} bytes, the pack has {pack_bytes}")
        return cls(
            base=Digest(base.hex()),
            index=index,
            places=places,
            tensors=layout.tensors,
            ends=ends,
        )

    def ranges(self, keep: Keep) -> list[tuple[int, int]]:
        """Return which bytes [start, stop) after the front are needed for the leaves to keep.

        Leaf checks and files are needed always.  Ranges ascend and do not touch each other.
        """
        chunks_from = len(self.places) + len(self.index.files)
        found = [(self.ends[0], self.ends[chunks_from])]
        spans = pairwise(self.ends[chunks_from:])
        for entry, (start, stop) in zip(self.index.chunks, spans, strict=True):
            if keep(*leaf_of(entry, self.tensors)):
                if found[-1][1] == start:
                    found[-1] = (found[-1][0], stop)
                else:
                    found.append((start, stop))
        return [(start, stop) for start, stop in found if start < stop]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """A parsed pack: its frame is sound, its payloads are checked as they are decoded.

    `leaves[t][i]` is what the pack has for leaf i of tensor t, a number in the layout's table.
    """

    base: Digest
    index: PackIndex
    tensors: Sequence[TensorSpec]
    leaves: Mapping[int, Mapping[int, PackedLeaf]]
    stored_files: tuple[memoryview, ...]

    @classmethod
    def parse(cls, data: bytes | memoryview, layout: Layout) -> Pack:
        """Parse a pack for weights of this structure.  Raises FormatError."""
        front = PackFront.parse(data, layout, len(data))
        index, places = front.index, front.places
        view = memoryview(data)
        parts = [view[start:stop] for start, stop in pairwise(front.ends)]
        files_from, chunks_from = len(places), len(places) + len(index.files)
        chunks: dict[tuple[int, int], list[PackedChunk]] = {place: [] for place in places}
        for entry, payload in zip(index.chunks, parts[chunks_from:], strict=True):
            chunks[leaf_of(entry, layout.tensors)].append(PackedChunk(entry=entry, payload=payload))
        leaves: dict[int, dict[int, PackedLeaf]] = {}
        for (tensor, leaf), check in zip(places, parts[:files_from], strict=True):
            packed = PackedLeaf(check=bytes(check), chunks=tuple(chunks[tensor, leaf]))
            leaves.setdefault(tensor, {})[leaf] = packed
        return cls(
            base=front.base,
            index=index,
            tensors=layout.tensors,
            leaves=leaves,
            stored_files=tuple(parts[files_from:chunks_from]),
        )

    def only(self, keep: Keep) -> Pack:
        """Return a pack that speaks of the leaves to keep alone; other payloads are not read."""
        kept = {
            tensor: {leaf: packed for leaf, packed in leaves.items() if keep(tensor, leaf)}
            for tensor, leaves in self.leaves.items()
        }
        return replace(self, leaves={tensor: leaves for tensor, leaves in kept.items() if leaves})

    def file(self, name: str, limit_bytes: int) -> bytes:
        """Return the content of a file that the pack carries.  Raises KeyError if it has none."""
        for entry, stored in zip(self.index.files, self.stored_files, strict=True):
            if entry.name == name:
                if entry.size > limit_bytes:
                    raise LimitExceeded(f"{name}: {entry.size} bytes, the limit is {limit_bytes}")
                content = decompress(bytes(stored), entry.size)
                if len(content) != entry.size:
                    raise FormatError(f"{name}: {entry.size} bytes expected, {len(content)} found")
                return content
        raise KeyError(name)

    @property
    def files(self) -> Mapping[str, int]:
        """The files that the pack carries, by name, with their sizes in bytes."""
        return {file.name: file.size for file in self.index.files}

    def decode(
        self, chunks: Sequence[PackedChunk], bases: Sequence[Words]
    ) -> list[tuple[Ints, Words]]:
        """Return the ascending positions and the new bits of the words that each chunk changes.

        `bases` are each chunk's words before the patch, and positions count from their start.
        Raises FormatError.  Nothing is written.
        """
        results: list[tuple[Ints, Words]] = [_NOTHING] * len(chunks)
        coded: list[int] = []
        for i, (chunk, base) in enumerate(zip(chunks, bases, strict=True)):
            if chunk.entry.mode in (Mode.CONTEXT, Mode.GAP):
                coded.append(i)
                continue
            decode = decode_planes if chunk.entry.mode is Mode.PLANES else decode_raw
            new = decode(bytes(chunk.payload), base, self.tensors[chunk.entry.tensor].type)
            positions = np.flatnonzero(base != new)
            results[i] = (positions, new[positions])
        decoded = kernel.current().decode(
            [chunks[i].payload for i in coded],
            [bases[i] for i in coded],
            [self._coded(chunks[i].entry) for i in coded],
        )
        for i, result in zip(coded, decoded, strict=True):
            results[i] = result
        return results

    def _coded(self, chunk: ChunkEntry) -> Coded:
        """Return what the context coder needs to know of a chunk."""
        return Coded(
            dtype=self.tensors[chunk.tensor].type,
            profile=self.index.profiles[chunk.profile],
            tilt=chunk.tilt,
            contextual=chunk.mode is Mode.CONTEXT,
        )


_NOTHING: tuple[Ints, Words] = (np.zeros(0, np.int64), np.zeros(0, np.uint8))


def leaf_of(chunk: ChunkEntry, tensors: Sequence[TensorSpec]) -> tuple[int, int]:
    """Return (tensor number, leaf number) of the leaf in which a chunk lies.

    A leaf is a whole number of CHUNK_WORDS of every word size, so there is just one.
    """
    return chunk.tensor, chunk.start * tensors[chunk.tensor].type.word // LEAF_BYTES


def leaves_of(chunks: Sequence[ChunkEntry], tensors: Sequence[TensorSpec]) -> list[tuple[int, int]]:
    """Return (tensor number, leaf number) of each leaf that a chunk lies in, ascending."""
    return list(dict.fromkeys(leaf_of(chunk, tensors) for chunk in chunks))


def leaf_range(spec: TensorSpec, leaf: int) -> tuple[int, int]:
    """Return the bytes [start, stop) of a tensor that a leaf covers."""
    if not 0 <= leaf < leaf_count(spec.nbytes):
        raise ValueError(f"{spec.name} has {leaf_count(spec.nbytes)} leaves, asked for {leaf}")
    return leaf * LEAF_BYTES, min((leaf + 1) * LEAF_BYTES, spec.nbytes)
