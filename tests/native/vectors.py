"""Writes chunks as the NumPy reference codes them, for `check` to compare the native kernel with.

`python -m tests.native.vectors FILE`.  Each chunk, little-endian: u32 bytes of a word, class shift,
class mask, is it a float; u32 is it sound; u64 words, u64 bytes of the payload; 256 rate codes, 256
table numbers; u32 tables, each: u32 precision, u32 symbols, u16 frequencies; the words before; the
payload; if it is sound, the words after.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from skerry.codec.context import Coded, decode_chunks, encode_chunks
from skerry.codec.dtypes import DTYPES, DType, Words
from skerry.codec.errors import FormatError
from skerry.codec.magnitudes import MagnitudeTable, quantise
from skerry.codec.profile import Profile
from skerry.codec.rates import Ints, rate_of
from skerry.codec.scan import CLASSES, ChunkDiff, classes_of, population_of, scan
from skerry.codec.steps import to_symbols
from tests.codec.checkpoints import mutate, random_bytes

_NAMES = ("BF16", "F16", "F8_E4M3", "F8_E5M2", "F32", "F64", "U8", "I64")
_SIZES = (1, 2, 63, 64, 65, 127, 200, 1000)
_DENSITIES = (0.0, 0.004, 0.1, 0.6, 1.0)
_LONG = ((4097, 0.1), (70_000, 0.02))  # words, density: the walks sample the classes of these
_TILTS = (0, -7, 9)
_TABLES = 3
_PRECISIONS = 7  # with at most 6, any steps at all have fewer symbols than a table has slots
_DAMAGED_BELOW = 100  # words: NumPy decodes a chunk at a time slowly


def chunks() -> Iterator[bytes]:
    """Yield every chunk of the file."""
    rng = np.random.default_rng(20_260_102)
    for name in _NAMES:
        dtype = DTYPES[name]
        for contextual in (True, False) if dtype.class_mask else (False,):
            yield from _group(rng, dtype, contextual)


def _group(rng: np.random.Generator, dtype: DType, contextual: bool) -> Iterator[bytes]:
    """Yield chunks of all sizes and densities that share a profile, then damaged ones."""
    pairs = [
        _pair(rng, dtype, words, density, near=bool(i % 2))
        for i, (words, density) in enumerate(
            [*((words, density) for words in _SIZES for density in _DENSITIES), *_LONG]
        )
    ]
    diffs = [_diff(old, new, dtype, contextual) for old, new in pairs]
    table_of, tables = _tables(diffs, precision=int(rng.integers(_PRECISIONS)))
    rates = rate_of(sum(diff.changed for diff in diffs), sum(diff.population for diff in diffs))
    profile = Profile(rates=rates, table_of=table_of, tables=tables)
    settings = [
        Coded(
            dtype=dtype,
            profile=profile,
            tilt=_TILTS[i % len(_TILTS)],
            contextual=contextual,
        )
        for i in range(len(pairs))
    ]
    payloads = encode_chunks(diffs, settings)
    for (old, new), setting, payload in zip(pairs, settings, payloads, strict=True):
        yield _record(old, new, setting, payload)
        if old.size < _DAMAGED_BELOW:
            damaged = bytearray(payload)
            damaged[rng.integers(len(damaged))] ^= 1 << int(rng.integers(8))
            yield _record(old, _decoded(bytes(damaged), old, setting), setting, bytes(damaged))


def _pair(
    rng: np.random.Generator, dtype: DType, words: int, density: float, *, near: bool
) -> tuple[Words, Words]:
    old = random_bytes(rng, dtype.name, words, True)
    new = mutate(rng, old, dtype.name, density, near)
    return old.view(dtype.numpy), new.view(dtype.numpy)


def _diff(old: Words, new: Words, dtype: DType, contextual: bool) -> ChunkDiff:
    diff = scan(old, new, dtype, contextual=contextual)
    if diff is not None:
        return diff
    # The encoder leaves such a chunk out; its bytes are defined all the same.
    return ChunkDiff(
        population=population_of(classes_of(old, dtype, contextual=contextual)),
        changed=np.zeros(CLASSES, np.int64),
        classes=np.zeros(0, np.uint8),
        ranks=np.zeros(0, np.uint32),
        magnitude=np.zeros(0, np.uint64),
        down=np.zeros(0, np.bool_),
    )


def _tables(diffs: list[ChunkDiff], precision: int) -> tuple[Ints, tuple[MagnitudeTable, ...]]:
    """Return tables of several precisions, which classes share in turn."""
    magnitude = np.concatenate([diff.magnitude for diff in diffs])
    table_of = np.arange(CLASSES) % _TABLES + 1
    number = table_of[np.concatenate([diff.classes for diff in diffs])]
    tables = []
    for i in range(1, _TABLES + 1):
        s = (precision + i) % _PRECISIONS
        symbols, _, _ = to_symbols(magnitude[number == i], s)
        seen = np.bincount(symbols, minlength=1)
        if not symbols.size:
            seen[0] = 1
        tables.append(MagnitudeTable(precision=s, frequencies=quantise(seen)))
    return table_of, tuple(tables)


def _decoded(payload: bytes, old: Words, setting: Coded) -> Words | None:
    try:
        [(positions, bits)] = decode_chunks([payload], [old], [setting])
    except FormatError:
        return None
    new = old.copy()
    new[positions] = bits
    return new


def _record(old: Words, new: Words | None, setting: Coded, payload: bytes) -> bytes:
    dtype = setting.dtype
    mask = dtype.class_mask if setting.contextual else 0
    is_float, is_sound = dtype.kind == "float", new is not None
    out = [
        struct.pack("<5I", dtype.word, dtype.class_shift, mask, is_float, is_sound),
        struct.pack("<2Q", old.size, len(payload)),
        setting.profile.tilted(setting.tilt).astype(np.uint8).tobytes(),
        setting.profile.table_of.astype(np.uint8).tobytes(),
        struct.pack("<I", len(setting.profile.tables)),
    ]
    for table in setting.profile.tables:
        out.append(struct.pack("<2I", table.precision, table.frequencies.size))
        out.append(table.frequencies.astype("<u2").tobytes())
    out += [old.tobytes(), payload, b"" if new is None else new.tobytes()]
    return b"".join(out)


def main(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.writelines(chunks())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
