"""The index of a pack: which chunks it holds, how each is coded, and what they share.

All integers are varints, written column by column so that zstd sees like beside like.
`parse_index(write_index(i), ...) == i` for every index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from skerry.codec.errors import FormatError, LimitExceeded
from skerry.codec.magnitudes import MAX_SYMBOLS, MAX_TABLES, MagnitudeTable
from skerry.codec.names import check_name
from skerry.codec.profile import MAX_TILT, Profile
from skerry.codec.rates import MAX_RATE, NEVER, TOTAL
from skerry.codec.scan import CHUNK_WORDS, CLASSES
from skerry.codec.steps import MAX_PRECISION
from skerry.codec.tensors import TensorSpec
from skerry.codec.varint import VarintReader, unzigzag, write_varint, write_varints, zigzag

MAX_CHUNKS = 1 << 24
MAX_PROFILES = 1 << 10
MAX_FILES = 100_000
MAX_ALL_SYMBOLS = 1 << 24  # of all magnitude tables: two bytes each once they are read
_MAX_U62 = 2**62 - 1


class Mode(IntEnum):
    """How a chunk is coded.  A chunk without changes is absent."""

    CONTEXT = 1  # `context`, classes by exponent
    GAP = 2  # `context`, all words in one class
    PLANES = 3
    RAW = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkEntry:
    """One chunk: words [start, start + count) of a tensor (a number in the layout's table)."""

    tensor: int
    start: int
    count: int
    mode: Mode
    profile: int = 0  # CONTEXT and GAP only, as is the tilt
    tilt: int = 0
    size: int  # bytes of its payload


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """A file, or a shard's header bytes, carried whole: `size` bytes, `stored` under zstd."""

    name: str
    size: int
    stored: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PackIndex:
    """Everything in a pack but payloads and leaf checks."""

    chunk_words: int
    profiles: tuple[Profile, ...]
    chunks: tuple[ChunkEntry, ...]
    files: tuple[FileEntry, ...]


def write_index(index: PackIndex, tensors: Sequence[TensorSpec]) -> bytes:
    """Return the index as bytes, not yet compressed."""
    out = bytearray()
    write_varints(out, (index.chunk_words.bit_length() - 1, len(index.profiles)))
    for profile in index.profiles:
        _write_profile(out, profile)
    chunks = index.chunks
    write_varint(out, len(chunks))
    explicit: list[int] = []
    places: list[int] = []
    deltas: list[int] = []
    before: ChunkEntry | None = None
    for chunk in chunks:
        deltas.append(chunk.tensor - (before.tensor if before else 0))
        place = _next_place(before, chunk.tensor, tensors, index.chunk_words)
        places.append(0 if place == (chunk.start, chunk.count) else 1)
        if places[-1]:
            explicit += (chunk.start, chunk.count)
        before = chunk
    write_varints(out, deltas)
    write_varints(out, places)
    write_varints(out, explicit)
    write_varints(out, (chunk.mode for chunk in chunks))
    write_varints(out, (chunk.profile for chunk in chunks))
    write_varints(out, (zigzag(chunk.tilt) for chunk in chunks))
    # Low bytes and high bytes apart: the high ones repeat.
    write_varints(out, (chunk.size & 0x7F for chunk in chunks))
    write_varints(out, (chunk.size >> 7 for chunk in chunks))
    write_varint(out, len(index.files))
    for file in index.files:
        name = file.name.encode()
        write_varint(out, len(name))
        out += name
        write_varints(out, (file.size, file.stored))
    return bytes(out)


def parse_index(data: bytes, tensors: Sequence[TensorSpec], room: int | None = None) -> PackIndex:
    """Parse an index against the tensor table that it speaks of.

    `room` is how many bytes follow it in its pack, where that is known: every chunk takes one.
    Chunks must ascend without overlap, lie inside their tensors and not cross a multiple of
    CHUNK_WORDS.  Raises FormatError.
    """
    reader = VarintReader(data)
    chunk_words = 1 << reader.varint(CHUNK_WORDS.bit_length() - 1)
    profiles: list[Profile] = []
    symbols_left = MAX_ALL_SYMBOLS
    for _ in range(reader.varint(MAX_PROFILES)):
        profiles.append(_read_profile(reader, symbols_left))
        symbols_left -= sum(table.frequencies.size for table in profiles[-1].tables)
    count = reader.varint(MAX_CHUNKS)
    if count > len(data) or (room is not None and count > room):
        raise LimitExceeded(f"{count} chunks in an index of {len(data)} bytes, {room} follow it")
    deltas = reader.varints(count, len(tensors))
    places = reader.varints(count, 1)
    explicit = reader.varints(2 * sum(places), _MAX_U62)
    modes = reader.varints(count, max(Mode))
    profile_of = reader.varints(count, max(len(profiles) - 1, 0))
    tilts = reader.varints(count, 2 * MAX_TILT)
    low = reader.varints(count, 0x7F)
    high = reader.varints(count, _MAX_U62 >> 7)
    chunks: list[ChunkEntry] = []
    before: ChunkEntry | None = None
    pairs = iter(explicit)
    for i in range(count):
        tensor = (before.tensor if before else 0) + deltas[i]
        if tensor >= len(tensors):
            raise FormatError(f"chunk {i} is of tensor {tensor}, there are {len(tensors)}")
        if places[i]:
            start, words = next(pairs), next(pairs)
        else:
            start, words = _next_place(before, tensor, tensors, chunk_words)
        if modes[i] == 0:
            raise FormatError(f"chunk {i} has mode 0")
        chunk = ChunkEntry(
            tensor=tensor,
            start=start,
            count=words,
            mode=Mode(modes[i]),
            profile=profile_of[i],
            tilt=unzigzag(tilts[i]),
            size=low[i] | high[i] << 7,
        )
        _check_chunk(chunk, before, tensors, len(profiles))
        chunks.append(chunk)
        before = chunk
    files = tuple(_read_file(reader) for _ in range(reader.varint(MAX_FILES)))
    if [file.name for file in files] != sorted({file.name for file in files}):
        raise FormatError("files of a pack are not in the order of their names, once each")
    reader.finish()
    return PackIndex(
        chunk_words=chunk_words, profiles=tuple(profiles), chunks=tuple(chunks), files=files
    )


def _next_place(
    before: ChunkEntry | None, tensor: int, tensors: Sequence[TensorSpec], chunk_words: int
) -> tuple[int, int]:
    """Return start and count of the chunk that follows on the grid, the common case."""
    start = before.start + before.count if before and before.tensor == tensor else 0
    end = min((start // chunk_words + 1) * chunk_words, tensors[tensor].words)
    return start, end - start


def most_bytes(words: int) -> int:
    """Return how many bytes a chunk of so many words has at most, whatever its mode.

    A coded word takes at most 12 bits each for a gap, the end of its class and a magnitude, 20 and
    63 raw bits and a direction.
    """
    return 16 * words + 64


def _check_chunk(
    chunk: ChunkEntry,
    before: ChunkEntry | None,
    tensors: Sequence[TensorSpec],
    profiles: int,
) -> None:
    where = f"chunk of tensor {chunk.tensor} at word {chunk.start}"
    end = chunk.start + chunk.count
    if chunk.count < 1 or end > tensors[chunk.tensor].words:
        raise FormatError(
            f"{where}: {chunk.count} words of a tensor of {tensors[chunk.tensor].words}"
        )
    if chunk.start // CHUNK_WORDS != (end - 1) // CHUNK_WORDS:
        raise FormatError(f"{where}: crosses a multiple of {CHUNK_WORDS} words")
    if before and before.tensor == chunk.tensor and chunk.start < before.start + before.count:
        raise FormatError(f"{where}: overlaps the chunk before or comes out of order")
    coded = chunk.mode in (Mode.CONTEXT, Mode.GAP)
    if not (4 if coded else 1) <= chunk.size <= most_bytes(chunk.count):
        raise FormatError(f"{where}: {chunk.size} bytes for {chunk.count} words")
    if coded:
        if chunk.profile >= profiles:
            raise FormatError(f"{where}: profile {chunk.profile} of {profiles}")
    elif chunk.profile or chunk.tilt:
        raise FormatError(f"{where}: a profile or tilt in mode {chunk.mode.name}")


def _write_profile(out: bytearray, profile: Profile) -> None:
    used = np.flatnonzero(profile.rates != NEVER)
    write_varint(out, used.size)
    write_varints(out, (int(d) for d in np.diff(used, prepend=-1) - 1))
    write_varints(out, (int(rate) for rate in profile.rates[used]))
    write_varint(out, len(profile.tables))
    write_varints(out, (int(table) for table in profile.table_of[used]))
    for table in profile.tables:
        write_varints(out, (table.precision, table.frequencies.size - 1))
        _write_runs(out, table.frequencies)


def _read_profile(reader: VarintReader, symbols_left: int) -> Profile:
    count = reader.varint(CLASSES)
    used = np.cumsum(np.array(reader.varints(count, CLASSES), np.int64) + 1) - 1
    if count and used[-1] >= CLASSES:
        raise FormatError(f"a profile names class {int(used[-1])}, there are {CLASSES}")
    rates = np.full(CLASSES, NEVER, np.int64)
    rates[used] = reader.varints(count, MAX_RATE)
    count_of_tables = reader.varint(MAX_TABLES)
    table_of = np.zeros(CLASSES, np.int64)
    table_of[used] = reader.varints(count, count_of_tables)
    tables = []
    for _ in range(count_of_tables):
        precision = reader.varint(MAX_PRECISION)
        symbols = reader.varint(MAX_SYMBOLS - 1) + 1
        symbols_left -= symbols
        if symbols_left < 0:
            raise LimitExceeded(f"magnitude tables of a pack have over {MAX_ALL_SYMBOLS} symbols")
        tables.append(MagnitudeTable(precision=precision, frequencies=_read_runs(reader, symbols)))
    return Profile(rates=rates, table_of=table_of, tables=tuple(tables))


def _write_runs(out: bytearray, frequencies: npt.NDArray[np.uint16]) -> None:
    """Write frequencies; after a 0 comes how many more zeros follow it."""
    at = 0
    while at < frequencies.size:
        write_varint(out, int(frequencies[at]))
        if frequencies[at]:
            at += 1
            continue
        rest = frequencies[at:]
        zeros = int(np.argmax(rest != 0)) if rest.any() else rest.size
        write_varint(out, zeros - 1)
        at += zeros


def _read_runs(reader: VarintReader, symbols: int) -> npt.NDArray[np.uint16]:
    frequencies = np.zeros(symbols, np.uint16)
    at = 0
    while at < symbols:
        frequencies[at] = reader.varint(TOTAL)
        at += 1 if frequencies[at] else 1 + reader.varint(symbols - at - 1)
    return frequencies


def _read_file(reader: VarintReader) -> FileEntry:
    size = reader.varint(1 << 12)
    try:
        name = check_name(reader.take(size).decode())
    except UnicodeDecodeError as error:
        raise FormatError("the name of a file in a pack is not UTF-8") from error
    return FileEntry(name=name, size=reader.varint(_MAX_U62), stored=reader.varint(_MAX_U62))
