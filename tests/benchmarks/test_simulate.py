"""Simulated steps obey the law that real ones do, and hit the density that was asked for."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from skerry.benchmarks.simulate import DTYPES, served, simulate
from skerry.benchmarks.weights import Pair, as_file, slice_of
from skerry.trainer.precision import bf16_bits


def density(pair: Pair) -> float:
    changed = sum(int((old != new).sum()) for _, old, new in pair.words())
    return changed / sum(spec.words for spec in pair.layout.tensors)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("share", [0.002, 0.05])
def test_the_density_is_what_was_asked_for(dtype: str, share: float) -> None:
    pair = simulate(dtype, 4_000_000, share, seed=1)
    assert density(pair) == pytest.approx(share, rel=0.1)
    assert pair.nbytes >= 4_000_000


def test_changes_double_with_every_octave_down() -> None:
    pair = simulate("BF16", 8_000_000, 0.01, seed=2)
    old = np.concatenate([o.reshape(-1) for s, o, _ in pair.words() if len(s.shape) == 2])
    new = np.concatenate([n.reshape(-1) for s, _, n in pair.words() if len(s.shape) == 2])
    exponent = old >> 7 & 0xFF
    rates = [(old != new)[exponent == e].mean() for e in range(116, 121)]  # 2^-11 to 2^-7
    assert all(1.6 < low / high < 2.4 for low, high in pairwise(rates))


def test_most_changes_are_a_single_ulp() -> None:
    pair = simulate("BF16", 4_000_000, 0.005, seed=3)
    steps = np.concatenate([np.abs(n.astype(np.int64) - o)[o != n] for _, o, n in pair.words()])
    assert 0.8 < (steps == 1).mean() < 0.97


def test_bf16_is_rounded_as_the_trainer_rounds() -> None:
    master = torch.randn(10_000, generator=torch.Generator().manual_seed(4))
    assert np.array_equal(served(master, "BF16", 1.0), bf16_bits(master))


def test_fp8_is_cast_from_bf16() -> None:
    master = torch.randn(10_000, generator=torch.Generator().manual_seed(5)) * 0.02
    scale = 2.0 ** math.floor(math.log2(448 / 0.12))
    expected = (master.to(torch.bfloat16).float() * scale).to(torch.float8_e4m3fn)
    assert np.array_equal(served(master, "F8_E4M3", 0.02), expected.view(torch.uint8).numpy())


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_seed_gives_the_same_weights_on_any_number_of_threads(dtype: str) -> None:
    one, two = (simulate(dtype, 1_000_000, 0.01, seed=6, threads=n) for n in (1, 2))
    assert one.layout == two.layout
    assert all(np.array_equal(one.old[name], two.old[name]) for name in one.old)
    assert all(np.array_equal(one.new[name], two.new[name]) for name in one.new)


def test_a_slice_has_a_share_of_every_tensor() -> None:
    pair = simulate("BF16", 4_000_000, 0.05, seed=7)
    part = slice_of(pair, 1_000_000)
    assert part.nbytes == pytest.approx(1_000_000, rel=0.05)
    assert density(part) == pytest.approx(density(pair), rel=0.1)
    assert set(part.old) == set(pair.old)
    assert slice_of(pair, pair.nbytes) is pair
    assert as_file(part, "BF16").nbytes == part.nbytes
