"""A comparison is fair only if the rivals lose nothing either."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skerry.benchmarks.rivals import EVERY_RIVAL, RIVALS, Rival
from skerry.benchmarks.sparse import from_leb128, leb128

_SHAPES = [(0,), (1,), (257,), (300_000,), (1, 1), (3, 100_003), (700, 129), (70_000, 2)]


def of(rival: Rival) -> pytest.MarkDecorator | object:
    reason = rival.missing()
    marks = [pytest.mark.skip(reason=reason)] if reason else []
    return pytest.param(rival, id=rival.name, marks=marks)


@pytest.mark.parametrize("rival", [of(rival) for rival in EVERY_RIVAL])
@settings(max_examples=30)
@given(
    seed=st.integers(0, 2**32),
    dtype=st.sampled_from([np.uint8, np.uint16]),
    shape=st.sampled_from(_SHAPES),
    density=st.sampled_from([0, 2e-5, 0.01, 1]),
)
def test_every_rival_is_lossless(
    rival: Rival,
    seed: int,
    dtype: type[np.unsignedinteger],
    shape: tuple[int, ...],
    density: float,
) -> None:
    rng = np.random.default_rng(seed)
    old = rng.integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)
    new = old.copy()
    chosen = rng.random(shape) < density
    new[chosen] ^= rng.integers(1, np.iinfo(dtype).max, int(chosen.sum()), dtype, endpoint=True)
    before = old.copy()
    assert np.array_equal(rival.decode(old, rival.encode(old, new)), new)
    assert np.array_equal(old, before)


def test_the_demo_shows_three_of_them() -> None:
    names = [rival.name for rival in EVERY_RIVAL]
    assert [rival.name for rival in RIVALS if rival.name in names] == [
        "int32 index + value",
        "dense XOR + zstd-1",
        "u16 gaps + XOR + zstd-1",
    ]
    assert len(set(names)) == len(names)


@given(st.lists(st.one_of(st.integers(0, 300), st.integers(0, 2**35 - 1))))
def test_leb128_is_what_others_read(values: list[int]) -> None:
    def one(value: int) -> bytes:
        groups = [value >> shift & 0x7F for shift in range(0, max(value.bit_length(), 1), 7)]
        return bytes([*(group | 0x80 for group in groups[:-1]), groups[-1]])

    data = leb128(np.array(values, np.int64))
    assert data.tobytes() == b"".join(map(one, values))
    assert from_leb128(data).tolist() == values
