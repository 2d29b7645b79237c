"""Shard headers: everything safetensors writes is read, every lie is refused (F-1, F-4, F-5)."""

from __future__ import annotations

import json
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from skerry.codec.dtypes import DTYPES
from skerry.codec.errors import FormatError, LimitExceeded
from skerry.codec.header import build_header, header_size, parse_header


def raw(entries: object, *, pad: int = 0) -> bytes:
    text = json.dumps(entries).encode() + b" " * pad
    return struct.pack("<Q", len(text)) + text


def tensor(dtype: str, shape: list[int], start: int, stop: int) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


shapes = st.lists(st.integers(0, 5), max_size=4)
names = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20).filter(
    lambda name: name != "__metadata__"
)


@given(
    st.dictionaries(names, st.tuples(st.sampled_from(sorted(DTYPES)), shapes), max_size=8),
    st.dictionaries(st.text("ab", min_size=1), st.text("cd"), max_size=3),
)
def test_a_header_that_was_built_is_parsed_back(
    tensors: dict[str, tuple[str, list[int]]], metadata: dict[str, str]
) -> None:
    # Shapes in multiples of 4 elements, so that narrow types fill whole bytes.
    table = [(name, dtype, [4, *shape]) for name, (dtype, shape) in tensors.items()]
    header = build_header("s", table, metadata)
    end = len(header.raw) + sum(t.nbytes for t in header.tensors)
    parsed = parse_header("s", header.raw, end)
    assert {(t.name, t.dtype, t.shape) for t in parsed.tensors} == {
        (name, dtype, tuple(shape)) for name, dtype, shape in table
    }
    assert parsed.metadata == metadata
    assert len(header.raw) % 8 == 0


def test_reads_what_the_safetensors_library_writes(tmp_path: Path) -> None:
    arrays: dict[str, np.ndarray] = {
        "b": np.arange(6, dtype=np.float32).reshape(2, 3),
        "a": np.array(7, np.int64),
        "empty": np.zeros((0, 4), np.float16),
        "flag": np.array([True, False]),
    }
    path = tmp_path / "m.safetensors"
    safetensors.numpy.save_file(arrays, path, metadata={"format": "np"})
    data = path.read_bytes()
    header = parse_header("m", data[: header_size(data[:8], len(data))], len(data))
    assert header.metadata == {"format": "np"}
    for spec in header.tensors:
        array = arrays[spec.name]
        assert spec.shape == array.shape
        assert data[spec.offset : spec.offset + spec.nbytes] == array.tobytes()


def test_the_safetensors_library_reads_what_we_build(tmp_path: Path) -> None:
    header = build_header("m", [("w", "BF16", [2]), ("none", "F8_E4M3", [0]), ("s", "F32", [])])
    path = tmp_path / "m.safetensors"
    path.write_bytes(header.raw + bytes(8))
    with safetensors.safe_open(path, framework="np") as file:
        assert set(file.keys()) == {"w", "none", "s"}
        assert file.get_slice("w").get_shape() == [2]


@pytest.mark.parametrize("dtype", ["F8_E4M3", "F8_E5M2", "F8_E8M0", "F4", "F6_E2M3", "BOOL", "C64"])
def test_every_dtype_is_known(dtype: str) -> None:
    header = build_header("m", [("w", dtype, [8])])
    assert header.tensors[0].nbytes == 8 * DTYPES[dtype].bits // 8


def test_a_shard_without_tensors_is_one() -> None:
    header = raw({"__metadata__": {"a": "b"}}, pad=3)
    assert parse_header("m", header, len(header)).tensors == ()


LIES = {
    "gap": ({"a": tensor("U8", [2], 1, 3)}, 3, "expected"),
    "overlap": ({"a": tensor("U8", [2], 0, 2), "b": tensor("U8", [2], 1, 3)}, 3, "overlap"),
    "cut": ({"a": tensor("U8", [4], 0, 4)}, 3, "the file at"),
    "longer": ({"a": tensor("U8", [2], 0, 2)}, 5, "the file at"),
    "shape": ({"a": tensor("U8", [3], 0, 2)}, 2, "has 3 bytes"),
    "backwards": ({"a": tensor("U8", [2], 2, 0)}, 2, "no range"),
    "negative": ({"a": tensor("U8", [-2], 0, 2)}, 2, "expected 0 to"),
    "huge": ({"a": tensor("F64", [2**40, 2**40], 0, 2)}, 2, "overflows"),
    "half a byte": ({"a": tensor("F4", [3], 0, 2)}, 2, "whole number of bytes"),
    "dtype": ({"a": tensor("F7", [2], 0, 2)}, 2, "known are"),
    "float": ({"a": {"dtype": "U8", "shape": [2.0], "data_offsets": [0, 2]}}, 2, "not an integer"),
    "bool": ({"a": {"dtype": "U8", "shape": [True], "data_offsets": [0, 1]}}, 1, "an integer"),
    "extra field": ({"a": tensor("U8", [2], 0, 2) | {"x": 1}}, 2, "expected dtype"),
    "list": ([], 0, "opening brace"),
    "metadata": ({"__metadata__": {"a": 1}}, 0, "expected text"),
    "control": ({"a\u0000": tensor("U8", [2], 0, 2)}, 2, "control character"),
    "many axes": ({"a": tensor("U8", [1] * 65, 0, 1)}, 1, "65 dimensions"),
}


@pytest.mark.parametrize("lie", LIES, ids=lambda name: name.replace(" ", "-"))
def test_a_header_that_lies_is_refused(lie: str) -> None:
    entries, data, rule = LIES[lie]
    header = raw(entries)
    with pytest.raises(FormatError, match=rule):
        parse_header("m", header, len(header) + data)


@pytest.mark.parametrize(
    "text", [b"{", b"", b"\xff{}", b'{"a":1}{', b'{"a":{},"a":{}}', b'{"a":NaN}', b"[" * 100_000]
)
def test_what_is_not_a_json_object_is_refused(text: bytes) -> None:
    header = struct.pack("<Q", len(text)) + text
    with pytest.raises(FormatError):
        parse_header("m", header, len(header))


def test_nesting_without_end_is_refused() -> None:
    text = b'{"a":' + b"[" * 100_000
    header = struct.pack("<Q", len(text)) + text
    with pytest.raises(FormatError):
        parse_header("m", header, len(header))


@pytest.mark.parametrize("length", [2**40, 2**63, 2**64 - 1])
def test_a_length_that_lies_is_refused_without_allocating(length: int) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(LimitExceeded, match="the limit is"):
            header_size(struct.pack("<Q", length), 1 << 50)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_a_file_of_seven_bytes_is_refused() -> None:
    with pytest.raises(FormatError, match="found 7"):
        header_size(b"1234567", 7)


def test_a_header_longer_than_its_file_is_refused() -> None:
    with pytest.raises(FormatError, match="in a file of 10 bytes"):
        header_size(struct.pack("<Q", 3), 10)
