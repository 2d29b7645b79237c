"""Writes what `fuzz_decode` starts from: the coded chunks of the golden packs, and a few others.

`python -m tests.native.seeds DIRECTORY`.  The form of an input is described in fuzz_decode.cpp.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from skerry.codec.dtypes import DType
from skerry.codec.index import Mode
from skerry.codec.pack import Pack
from skerry.codec.profile import Profile
from skerry.codec.rates import MAX_RATE, NEVER, Ints
from tests.codec.checkpoints import weights_of
from tests.codec.vectors import DIRECTORY

_DTYPES = ((2, 7), (2, 10), (1, 3), (1, 2), (4, 23), (8, 55), (1, 0), (2, 0), (4, 0), (8, 0))
_ONE_CLASS = 128
_GIVEN, _FILLED = 0, 1  # the words follow, or the harness makes them


def decoding() -> Iterator[bytes]:
    """Yield an input for each coded chunk of the golden packs."""
    for path in sorted(DIRECTORY.glob("*.json")):
        value = json.loads(path.read_text())
        tensors = value["tensors"].items()
        base = weights_of(
            {n: (t, np.frombuffer(bytes.fromhex(old), np.uint8)) for n, (t, old, _) in tensors}
        )
        pack = Pack.parse(bytes.fromhex(value["pack"]), base.layout)
        for tensor, leaves in pack.leaves.items():
            spec = base.layout.tensors[tensor]
            words = spec.view(base.read(spec))
            for chunk in (chunk for leaf in leaves.values() for chunk in leaf.chunks):
                entry = chunk.entry
                if entry.mode not in (Mode.CONTEXT, Mode.GAP):
                    continue
                profile = pack.index.profiles[entry.profile]
                yield b"".join(
                    [
                        _head(0, spec.type, entry.mode is Mode.CONTEXT, entry.count, _GIVEN),
                        _profile(profile, profile.tilted(entry.tilt)),
                        words[entry.start : entry.start + entry.count].tobytes(),
                        chunk.payload,
                    ]
                )


def encoding() -> Iterator[bytes]:
    """Yield inputs that have the harness encode, of every dtype and kind of change."""
    for dtype in range(len(_DTYPES)):
        for style in range(3):
            head = struct.pack("<BBBHBI", 1, dtype, style, 700 + 100 * style, _FILLED + style, 7)
            change = struct.pack("<HBI", 6000, style, 11)
            fitted = struct.pack("<BBBH", 2, style, 24 + 6 * style, 0)
            yield head + change + fitted + struct.pack("<BHB", 0, 9, 1)
        # All words change; the raw bits of the last, at a payload's very end, can point past it.
        head = struct.pack("<BBBHBI", 1, dtype | _ONE_CLASS, 1, 3, _FILLED, 7)
        for bits in (1, 6, 128):
            yield head + struct.pack("<HBIBBBHBHB", 65535, 0, 11, 1, 0, 60, 0, 1, 0, bits)
            yield head + struct.pack("<HBIBBBHBHB", 65535, 0, 11, 1, 0, 60, 0, 1, 3, bits)


def forging() -> Iterator[bytes]:
    """Yield inputs whose magnitudes reach past what a word can hold, of every dtype."""
    for dtype in range(len(_DTYPES)):
        for precision in (0, 6):
            head = struct.pack("<BBBHBI", 2, dtype, 1, 3, _FILLED, 7)
            # Every 51st symbol: every octave, and those beyond the last.
            table = struct.pack("<BBH", 1, precision, 90) + struct.pack("<HH", 50, 45) * 90
            classes = struct.pack("<HBBB", 1, 0, 30, 1)
            yield head + table + classes + struct.pack("<HIHIHI", 1, 1, 3450, 2, 3650, 3)


def hostile() -> Iterator[bytes]:
    """Yield payloads of zeros: all words change, with more raw bits than there are bytes."""
    for dtype in range(len(_DTYPES)):
        for rate in (0, 60, MAX_RATE):
            head = struct.pack("<BBBHBI", 0, dtype, 1, 900, _FILLED + 1, 7)
            classes = b"".join(struct.pack("<BBB", c, rate, 0) for c in range(32))
            yield head + b"\0" + struct.pack("<H", 32) + classes + struct.pack("<I32x", 1 << 16)


def main(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate([*decoding(), *encoding(), *forging(), *hostile()]):
        (directory / f"seed-{number:03}").write_bytes(data)


def _head(what: int, dtype: DType, contextual: bool, words: int, made: int) -> bytes:
    shift = dtype.class_shift if dtype.class_mask else 0
    kind = _DTYPES.index((dtype.word, shift)) | (0 if contextual else _ONE_CLASS)
    return struct.pack("<BBBHB", what, kind, 1, words, made)


def _profile(profile: Profile, rates: Ints) -> bytes:
    out = bytearray([len(profile.tables)])
    for table in profile.tables:
        used = np.flatnonzero(table.frequencies)
        out += struct.pack("<BH", table.precision, used.size)
        for skipped, y in zip(np.diff(used, prepend=-1) - 1, used, strict=True):
            out += struct.pack("<HH", skipped, table.frequencies[y])
    classes = np.flatnonzero(rates != NEVER)
    out += struct.pack("<H", classes.size)
    for c in classes:
        assert rates[c] <= MAX_RATE
        out += struct.pack("<BBB", c, rates[c], profile.table_of[c])
    return bytes(out)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
