"""Routed experts: what an engine writes is read back exactly, and nothing else is read."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.inference.routed import RoutedExpertsInvalid, decode_routed, encode_routed

SHAPE = (3, 2, 2)
EXPERTS = np.array([[[0, 1], [7, 2]], [[3, 4], [5, 6]], [[6, 0], [1, 3]]])
DATA = encode_routed(EXPERTS, count=8)


@given(st.integers(1, 5), st.integers(1, 3), st.integers(1, 4), st.sampled_from([4, 256, 300]))
def test_round_trip(tokens: int, layers: int, per_token: int, count: int) -> None:
    rng = np.random.default_rng(tokens * 100 + layers * 10 + per_token)
    rows = [rng.choice(count, per_token, replace=False) for _ in range(tokens * layers)]
    drawn = np.array(rows).reshape(tokens, layers, per_token)
    data = encode_routed(drawn, count=count)
    assert np.array_equal(decode_routed(data, shape=drawn.shape, count=count), drawn)
    assert np.array_equal(np.load(io.BytesIO(data), allow_pickle=False), drawn)


def npy(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["u1", "<u2", "<i4"])
def test_the_types_that_vllm_sends_are_read(kind: str) -> None:
    assert np.array_equal(decode_routed(npy(EXPERTS.astype(kind)), shape=SHAPE, count=8), EXPERTS)


TWICE = EXPERTS.copy()
TWICE[1, 1] = 5
BAD = {
    "nothing": b"",
    "no magic": b"routed experts",
    "cut short": DATA[:-1],
    "more than it says": DATA + b"\0",
    "another version": DATA.replace(b"NUMPY\x01", b"NUMPY\x02"),
    "a huge header": b"\x93NUMPY\x01\x00" + struct.pack("<H", 60_000) + b" " * 60_000,
    "no header": b"\x93NUMPY\x01\x00" + struct.pack("<H", 64) + b" " * 64,
    "other tokens": npy(EXPERTS[:2].astype("u1")),
    "wide words": npy(EXPERTS.astype("<i8")),
    "big-endian": npy(EXPERTS.astype(">u2")),
    "columns first": npy(np.asfortranarray(EXPERTS.astype("u1"))),
    "objects": npy(EXPERTS.astype(object)),
    "an expert that is not there": npy((EXPERTS + 1).astype("u1")),
    "a negative one": npy((EXPERTS - 1).astype("<i4")),
    "one twice": npy(TWICE.astype("u1")),
}


@pytest.mark.parametrize("name", BAD)
def test_anything_else_is_refused(name: str) -> None:
    with pytest.raises(RoutedExpertsInvalid, match="routed experts"):
        decode_routed(BAD[name], shape=SHAPE, count=8)
