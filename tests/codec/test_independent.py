"""The document says all: a decoder that follows it, and shares no code with ours, agrees."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from skerry.codec.encode import encode_pack
from skerry.codec.errors import CodecError
from skerry.codec.fold import fold_changes
from skerry.codec.pack import Pack
from tests.codec.checkpoints import Weights, pairs, weights_of
from tests.codec.independent import decode, decode_all
from tests.codec.vectors import DIRECTORY

pytestmark = pytest.mark.usefixtures("each_kernel")

CHUNK = 256


@pytest.mark.parametrize("path", sorted(DIRECTORY.glob("*.json")), ids=lambda path: path.stem)
def test_it_reads_every_golden_pack(path: Path) -> None:
    value = json.loads(path.read_text())
    old = [(name, dtype, bytes.fromhex(a)) for name, (dtype, a, _) in value["tensors"].items()]
    new = {name: bytes.fromhex(b) for name, (_, _, b) in value["tensors"].items()}
    weights, files = decode_all(bytes.fromhex(value["pack"]), old)
    assert weights == new
    assert {name: data.hex() for name, data in files.items()} == value["files"]


@settings(max_examples=60)
@given(pairs(CHUNK))
def test_it_reads_every_pack_that_we_write(pair: tuple[Weights, Weights]) -> None:
    old, new = pair
    pack = encode_pack(
        old.layout, old.read, new.read, base=old.digest().version(), chunk_words=CHUNK
    )
    tensors = [(t.name, t.dtype, old.read(t).tobytes()) for t in old.layout.tensors]
    assert decode(pack.data, tensors) == {n: bits.tobytes() for n, bits in new.data.items()}


def ours(pack: bytes, old: Weights) -> dict[str, bytes]:
    parsed = Pack.parse(pack, old.layout)
    for name, size in parsed.files.items():
        parsed.file(name, size)
    new = {name: bits.copy() for name, bits in old.data.items()}
    for changes in fold_changes(old.layout, [parsed], old.read):
        changes.spec.view(new[changes.spec.name])[changes.positions] = changes.new
    return {name: bits.tobytes() for name, bits in new.items()}


# Two chunks of an U8 tensor at places of their own, words 1 to 2 and 9 to 9: no encoder of ours
# makes such packs yet, a trainer's ranks will.
PLACES = (
    "534b52595041434b010000001f00000000000000000000000000000000000000000000000000000000000000000000"
    "0028b52ffd2016b10000140002000001010201090204040000000001020000002ece2bd4070900"
)


def test_both_read_chunks_at_places_of_their_own() -> None:
    old = weights_of({"a": ("U8", np.zeros(16, np.uint8))})
    expected = bytearray(16)
    expected[2], expected[9] = 7, 9
    pack = bytes.fromhex(PLACES)
    assert decode(pack, [("a", "U8", bytes(16))]) == {"a": bytes(expected)} == ours(pack, old)


SMALL = [p for p in sorted(DIRECTORY.glob("*.json")) if p.stat().st_size < 9_000]


@pytest.mark.parametrize("path", SMALL, ids=lambda path: path.stem)
def test_both_refuse_the_same_damage(path: Path) -> None:
    """Of every pack with one bit flipped, the two decoders make the same, or nothing."""
    value = json.loads(path.read_text())
    sound = bytes.fromhex(value["pack"])
    old = weights_of(
        {
            name: (dtype, np.frombuffer(bytes.fromhex(a), np.uint8))
            for name, (dtype, a, _) in value["tensors"].items()
        }
    )
    tensors = [(t.name, t.dtype, old.read(t).tobytes()) for t in old.layout.tensors]
    for at in range(len(sound)):
        pack = bytearray(sound)
        pack[at] ^= 1 << at % 8
        assert outcome(partial(decode, tensors=tensors), bytes(pack)) == outcome(
            partial(ours, old=old), bytes(pack)
        ), f"byte {at}"


def outcome(read: Callable[[bytes], dict[str, bytes]], pack: bytes) -> dict[str, bytes] | None:
    """Return the weights, or None for a refusal."""
    try:
        return read(pack)
    except (ValueError, CodecError):
        return None
