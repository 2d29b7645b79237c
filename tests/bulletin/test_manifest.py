"""Manifests: one spelling inside one zstd frame."""

from __future__ import annotations

import json

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from skerry.bulletin.errors import RecordInvalid
from skerry.bulletin.manifest import MANIFEST_LIMIT_BYTES, Manifest
from skerry.codec.tensors import TensorStat
from tests.bulletin.log_builder import digest
from tests.bulletin.strategies import manifests

SMALL = Manifest(
    layout=digest("layout"),
    side_files=("a.json", "b.json"),
    tensors=(TensorStat(name="t", changed=1, words=4, nbytes=9),),
    leaves={"t": {0: digest("leaf 0"), 2: digest("leaf 2")}},
    recipe={"dtype": "BF16"},
)


@given(manifests())
def test_round_trips_through_bytes(manifest: Manifest) -> None:
    assert Manifest.from_bytes(manifest.to_bytes()) == manifest


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused(data: bytes) -> None:
    for stored in (data, zstandard.compress(data)):
        with pytest.raises(RecordInvalid):
            Manifest.from_bytes(stored)


def stored(value: object) -> bytes:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return zstandard.compress(text.encode("utf-8", errors="surrogatepass"))


def test_bad_fields_are_refused() -> None:
    good = json.loads(zstandard.decompress(SMALL.to_bytes()))
    assert Manifest.from_bytes(stored(good)) == SMALL
    for name, value in [
        ("format", 2), ("format", True), ("layout", "x"), ("side_files", ["b", "a"]),
        ("side_files", ["a", "a"]), ("side_files", ["../a"]), ("tensors", [["t", 5, 4, 9]]),
        ("tensors", [["t", 1, 4]]), ("tensors", [["", 1, 4, 9]]), ("tensors", [["t", 1, 4, 9]] * 2),
        ("tensors", {}), ("leaves", []), ("leaves", {"t": [[0]]}), ("leaves", {"": []}),
        ("leaves", {"t": [[1, digest("a")], [0, digest("b")]]}),
        ("leaves", {"t": [[0, digest("a")], [0, digest("b")]]}),
        ("leaves", {"t": [[0, "short"]]}), ("recipe", []), ("recipe", {"lr": 1.5}),
        ("recipe", {"s": "\ud800"}), ("extra", 1),
    ]:  # fmt: skip
        with pytest.raises(RecordInvalid, match="manifests/7"):
            Manifest.from_bytes(stored({**good, name: value}), what="manifests/7")


def test_another_spelling_is_refused() -> None:
    text = zstandard.decompress(SMALL.to_bytes())
    for respelled in (text + b" ", b" " + text, text.replace(b":", b": ", 1)):
        with pytest.raises(RecordInvalid):
            Manifest.from_bytes(zstandard.compress(respelled))


def test_a_second_frame_a_tail_or_a_bomb_is_refused() -> None:
    data = SMALL.to_bytes()
    bomb = zstandard.compress(bytes(MANIFEST_LIMIT_BYTES + 1))
    for hostile in (data + data, data + b"\0", data[:-1], bomb):
        with pytest.raises(RecordInvalid):
            Manifest.from_bytes(hostile)
