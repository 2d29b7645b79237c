"""The BF16 cast: every FP32 pattern, rounded as an integer implementation rounds it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from skerry.trainer.precision import bf16_bits, served_weights, to_bf16


def rounded(bits: int) -> int:
    """Round FP32 bits to BF16 bits: to nearest, ties to even, by integers alone."""
    if bits & 0x7FFF_FFFF > 0x7F80_0000:
        return 0x7FC0
    kept, rest = bits >> 16, bits & 0xFFFF
    return kept + (rest > 0x8000 or (rest == 0x8000 and kept % 2 == 1))


def cast(bits: npt.NDArray[np.uint32]) -> list[int]:
    values = torch.from_numpy(bits.view(np.int32).copy()).view(torch.float32)
    return [int(word) for word in bf16_bits(values)]


corners = st.sampled_from(
    [
        0x0000_0000,  # 0
        0x8000_0000,  # -0.0
        0x0000_0001,  # the smallest subnormal
        0x007F_FFFF,  # the largest one
        0x0000_8000,  # ties
        0x0001_8000,
        0x3F80_8000,
        0x3F81_8000,
        0x7F7F_FFFF,  # rounds to infinity
        0x7F80_0000,  # infinities
        0xFF80_0000,
        0x7F80_0001,  # signalling and quiet NaNs
        0xFFC0_0000,
        0xFFFF_FFFF,
    ]
)
halves = st.integers(0, 2**17 - 1).map(lambda n: n << 15)  # exact or a tie, nothing else
patterns = st.one_of(corners, halves, st.integers(0, 2**32 - 1))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA or ROCm device")
def test_an_accelerator_casts_to_the_same_bits() -> None:
    upper = np.arange(2**16, dtype=np.uint32) << np.uint32(16)
    for rest in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF):
        values = torch.from_numpy((upper | np.uint32(rest)).view(np.float32))
        there = to_bf16(values.cuda()).cpu().view(torch.int16).numpy().view(np.uint16)
        assert np.array_equal(there, bf16_bits(values))


@given(st.lists(patterns, min_size=1, max_size=100))
def test_equals_rounding_by_integers(bits: list[int]) -> None:
    assert cast(np.array(bits, np.uint32)) == [rounded(b) for b in bits]


def test_every_upper_half_with_every_kind_of_rest() -> None:
    upper = np.arange(2**16, dtype=np.uint32) << np.uint32(16)
    for rest in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF):
        bits = upper | np.uint32(rest)
        assert cast(bits) == [rounded(int(b)) for b in bits]


def test_a_nan_at_any_place_of_a_long_tensor_is_found() -> None:
    values = torch.ones(3_000_001)
    values[[0, 2**20 - 1, 2**20, 3_000_000]] = float("nan")
    bits = bf16_bits(values)
    assert [int(p) for p in np.flatnonzero(bits == 0x7FC0)] == [0, 2**20 - 1, 2**20, 3_000_000]
    assert np.count_nonzero(bits == 0x3F80) == 3_000_001 - 4


def test_a_tensor_without_elements_is_cast_to_one_without() -> None:
    assert bf16_bits(torch.ones(0, 3)).shape == (0, 3)


def test_only_float32_is_cast() -> None:
    with pytest.raises(TypeError, match="float32"):
        bf16_bits(torch.ones(3, dtype=torch.float64))


def test_kept_tensors_stay_bit_for_bit_and_all_are_copies() -> None:
    weights = {"router.bias": torch.tensor([1.0000001]), "norm.weight": torch.ones(2, 3).T}
    served = served_weights(weights.items(), keep={"router.bias"})
    for values in weights.values():
        values.zero_()
    assert served["router.bias"].dtype == "F32"
    assert served["router.bias"].data.view(np.float32)[0] == np.float32(1.0000001)
    assert served["norm.weight"].dtype == "BF16"
    assert served["norm.weight"].data.shape == (3, 2)
    assert (served["norm.weight"].data == 0x3F80).all()
