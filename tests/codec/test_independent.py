"""The document says all: a decoder that follows it, and shares no code with ours, agrees."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings

from skerry.codec.encode import encode_pack
from tests.codec.checkpoints import Weights, pairs
from tests.codec.independent import decode
from tests.codec.vectors import DIRECTORY

CHUNK = 256


@pytest.mark.parametrize("path", sorted(DIRECTORY.glob("*.json")), ids=lambda path: path.stem)
def test_it_reads_every_golden_pack(path: Path) -> None:
    value = json.loads(path.read_text())
    old = [(name, dtype, bytes.fromhex(a)) for name, (dtype, a, _) in value["tensors"].items()]
    new = {name: bytes.fromhex(b) for name, (_, _, b) in value["tensors"].items()}
    assert decode(bytes.fromhex(value["pack"]), old) == new


@settings(max_examples=60)
@given(pairs(CHUNK))
def test_it_reads_every_pack_that_we_write(pair: tuple[Weights, Weights]) -> None:
    old, new = pair
    pack = encode_pack(
        old.layout, old.read, new.read, base=old.digest().version(), chunk_words=CHUNK
    )
    tensors = [(t.name, t.dtype, old.read(t).tobytes()) for t in old.layout.tensors]
    assert decode(pack.data, tensors) == {n: bits.tobytes() for n, bits in new.data.items()}
