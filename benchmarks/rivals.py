"""Patch encodings that others use, on the same bytes as ours.

Each is written from its public description, as lossless and as framed as its users have it: one
zstd frame per tensor or stream, positions and values both counted, no metadata.  `decode` exists so
that a test can show that nothing was left out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import zstandard

from skerry.codec.dtypes import Words

_SKIP = 0xFFFF  # a gap that is only a step on the way: no change there


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """One encoding of what changed between two tensors of the same shape [n]."""

    name: str
    used_by: str
    encode: Callable[[Words, Words], list[bytes]]
    decode: Callable[[Words, list[bytes]], Words]


def _pack(data: bytes, level: int) -> bytes:
    return zstandard.ZstdCompressor(level=level).compress(data)


def _unpack(data: bytes) -> bytes:
    return zstandard.ZstdDecompressor().decompress(data)


def _xor(level: int) -> Rival:
    def encode(old: Words, new: Words) -> list[bytes]:
        return [_pack((old ^ new).tobytes(), level)]

    def decode(old: Words, parts: list[bytes]) -> Words:
        return old ^ np.frombuffer(_unpack(parts[0]), old.dtype)

    return Rival(
        name=f"dense XOR + zstd-{level}",
        used_by="slime, miles, Stitch, SkyRL, ModelExpress",
        encode=encode,
        decode=decode,
    )


def _gaps_encode(old: Words, new: Words) -> list[bytes]:
    positions = np.flatnonzero(old != new)
    gaps = np.diff(positions, prepend=-1) - 1
    skips = gaps // _SKIP
    stream = np.full(int(skips.sum()) + gaps.size, _SKIP, np.uint16)
    stream[np.cumsum(skips + 1) - 1] = gaps - skips * _SKIP
    return [_pack(stream.tobytes(), 1), _pack((old ^ new)[positions].tobytes(), 1)]


def _gaps_decode(old: Words, parts: list[bytes]) -> Words:
    stream = np.frombuffer(_unpack(parts[0]), np.uint16).astype(np.int64)
    # A skip passes over _SKIP words; a gap passes over its words and lands on the next.
    landing = np.cumsum(stream + (stream != _SKIP)) - 1
    new = old.copy()
    new[landing[stream != _SKIP]] ^= np.frombuffer(_unpack(parts[1]), old.dtype)
    return new


def _indices_encode(old: Words, new: Words) -> list[bytes]:
    positions = np.flatnonzero(old != new)
    return [positions.astype(np.int32).tobytes(), new[positions].tobytes()]


def _indices_decode(old: Words, parts: list[bytes]) -> Words:
    new = old.copy()
    new[np.frombuffer(parts[0], np.int32)] = np.frombuffer(parts[1], old.dtype)
    return new


RIVALS = (
    Rival(
        name="int32 index + value",
        used_by="TRL, verl, vLLM sparse, AstraFlow",
        encode=_indices_encode,
        decode=_indices_decode,
    ),
    _xor(1),
    Rival(
        name="u16 gaps + XOR + zstd-1",
        used_by="NeMo-RL",
        encode=_gaps_encode,
        decode=_gaps_decode,
    ),
)
