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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

import numpy as np

from skerry.codec.compress import decompress
from skerry.codec.context import Coded, decode_chunks
from skerry.codec.digest import LEAF_BYTES, Bytes, Digest, leaf_count
from skerry.codec.errors import FormatError, LimitExceeded
from skerry.codec.index import ChunkEntry, Mode, PackIndex, parse_index
from skerry.codec.layout import Layout
from skerry.codec.planes import decode_planes, decode_raw
from skerry.codec.rates import Ints
from skerry.codec.tensors import TensorChanges, TensorSpec

MAGIC = b"SKRYPACK"
FORMAT = 1
HEADER = struct.Struct("<8sII32s")
LEAF_CHECK_BYTES = 4
MAX_INDEX_BYTES = 256 * 1024 * 1024  # unpacked
_BATCH_WORDS = 64 * 1024 * 1024  # chunks decoded together share the cost of each NumPy call


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """A parsed pack: its frame is sound, its payloads are checked as they are decoded."""

    base: Digest
    index: PackIndex
    tensors: Sequence[TensorSpec]
    leaf_checks: Mapping[int, Mapping[int, bytes]]  # by tensor number, then leaf number
    chunks: Mapping[int, Sequence[tuple[ChunkEntry, memoryview]]]  # payloads by tensor number
    stored_files: tuple[memoryview, ...]

    @classmethod
    def parse(cls, data: bytes | memoryview, layout: Layout) -> Pack:
        """Parse a pack for weights of this structure.  Raises FormatError."""
        if len(data) < HEADER.size:
            raise FormatError(f"a pack has at least {HEADER.size} bytes, found {len(data)}")
        magic, version, index_size, base = HEADER.unpack_from(data)
        if magic != MAGIC:
            raise FormatError(f"a pack starts with {MAGIC!r}, found {magic!r}", offset=0)
        if version != FORMAT:
            raise FormatError(f"pack format {FORMAT} expected, found {version}", offset=8)
        if HEADER.size + index_size > len(data):
            raise FormatError(f"an index of {index_size} bytes in a pack of {len(data)}", offset=12)
        view = memoryview(data)
        at = HEADER.size + index_size
        index_bytes = decompress(bytes(view[HEADER.size : at]), MAX_INDEX_BYTES)
        index = parse_index(index_bytes, layout.tensors)
        leaves = leaves_of(index.chunks, layout.tensors)
        sizes = [LEAF_CHECK_BYTES] * len(leaves)
        sizes += [file.stored for file in index.files]
        sizes += [chunk.size for chunk in index.chunks]
        ends = [at]
        for size in sizes:
            ends.append(ends[-1] + size)
        if ends[-1] != len(data):
            raise FormatError(f"the index describes {ends[-1]} bytes, the pack has {len(data)}")
        parts = [view[start:stop] for start, stop in pairwise(ends)]
        files_from, chunks_from = len(leaves), len(leaves) + len(index.files)
        leaf_checks: dict[int, dict[int, bytes]] = {}
        for (tensor, leaf), check in zip(leaves, parts[:files_from], strict=True):
            leaf_checks.setdefault(tensor, {})[leaf] = bytes(check)
        return cls(
            base=Digest(base.hex()),
            index=index,
            tensors=layout.tensors,
            leaf_checks=leaf_checks,
            chunks={
                tensor: tuple(group)
                for tensor, group in groupby(
                    zip(index.chunks, parts[chunks_from:], strict=True),
                    key=lambda pair: pair[0].tensor,
                )
            },
            stored_files=tuple(parts[files_from:chunks_from]),
        )

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

    def changed_tensors(self) -> list[int]:
        """Return the numbers of the tensors that the pack has chunks of, ascending."""
        return list(self.chunks)

    def decode(self, tensors: Sequence[int], bases: Sequence[Bytes]) -> list[TensorChanges]:
        """Return the changes of the given tensors, whose bytes before the patch are `bases`.

        Raises FormatError.  Nothing is written.
        """
        work = [
            (slot, chunk, payload)
            for slot, tensor in enumerate(tensors)
            for chunk, payload in self.chunks.get(tensor, ())
        ]
        words = [self.tensors[t].view(b) for t, b in zip(tensors, bases, strict=True)]
        decoded: list[list[tuple[Ints, np.ndarray]]] = [[] for _ in tensors]
        for batch in _batches(work):
            for (slot, chunk, _), (positions, new) in zip(
                batch, self._decode_batch(batch, words), strict=True
            ):
                decoded[slot].append((positions + chunk.start, new))
        results = []
        for slot, tensor in enumerate(tensors):
            spec = self.tensors[tensor]
            positions = np.concatenate([p for p, _ in decoded[slot]] or [np.zeros(0, np.int64)])
            new = np.concatenate([n for _, n in decoded[slot]] or [np.zeros(0, spec.type.numpy)])
            old = words[slot][positions]
            results.append(TensorChanges(spec=spec, positions=positions, old=old, new=new))
        return results

    def _decode_batch(
        self, batch: Sequence[tuple[int, ChunkEntry, memoryview]], words: Sequence[np.ndarray]
    ) -> list[tuple[Ints, np.ndarray]]:
        results: list[tuple[Ints, np.ndarray] | None] = [None] * len(batch)
        coded: list[int] = []
        settings, bases = [], []
        for i, (slot, chunk, payload) in enumerate(batch):
            base = words[slot][chunk.start : chunk.start + chunk.count]
            dtype = self.tensors[chunk.tensor].type
            if chunk.mode in (Mode.CONTEXT, Mode.GAP):
                coded.append(i)
                bases.append(base)
                settings.append(coded_of(chunk, self.index, self.tensors))
                continue
            decode = decode_planes if chunk.mode is Mode.PLANES else decode_raw
            new = decode(bytes(payload), base, dtype)
            positions = np.flatnonzero(base != new)
            results[i] = (positions, new[positions])
        payloads = [batch[i][2] for i in coded]
        for i, result in zip(coded, decode_chunks(payloads, bases, settings), strict=True):
            results[i] = result
        return [result for result in results if result is not None]


def coded_of(chunk: ChunkEntry, index: PackIndex, tensors: Sequence[TensorSpec]) -> Coded:
    """Return what the context coder needs to know of a chunk."""
    return Coded(
        dtype=tensors[chunk.tensor].type,
        profile=index.profiles[chunk.profile],
        tilt=chunk.tilt,
        contextual=chunk.mode is Mode.CONTEXT,
    )


def leaves_of(chunks: Sequence[ChunkEntry], tensors: Sequence[TensorSpec]) -> list[tuple[int, int]]:
    """Return (tensor number, leaf number) of each leaf that a chunk lies in, ascending.

    A leaf is a whole number of CHUNK_WORDS of every word size, so a chunk lies in just one.
    """
    found = (
        (chunk.tensor, chunk.start * tensors[chunk.tensor].type.word // LEAF_BYTES)
        for chunk in chunks
    )
    return list(dict.fromkeys(found))


def leaf_range(spec: TensorSpec, leaf: int) -> tuple[int, int]:
    """Return the bytes [start, stop) of a tensor that a leaf covers."""
    if not 0 <= leaf < leaf_count(spec.nbytes):
        raise ValueError(f"{spec.name} has {leaf_count(spec.nbytes)} leaves, asked for {leaf}")
    return leaf * LEAF_BYTES, min((leaf + 1) * LEAF_BYTES, spec.nbytes)


def _batches(
    work: Sequence[tuple[int, ChunkEntry, memoryview]],
) -> Iterator[list[tuple[int, ChunkEntry, memoryview]]]:
    batch: list[tuple[int, ChunkEntry, memoryview]] = []
    words = 0
    for item in work:
        if batch and words + item[1].count > _BATCH_WORDS:
            yield batch
            batch, words = [], 0
        batch.append(item)
        words += item[1].count
    if batch:
        yield batch
