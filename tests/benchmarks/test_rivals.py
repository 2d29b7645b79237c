"""A comparison is fair only if the rivals lose nothing either."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.benchmarks.rivals import RIVALS, Rival


@pytest.mark.parametrize("rival", RIVALS, ids=lambda rival: rival.name)
@given(
    seed=st.integers(0, 2**32),
    words=st.integers(0, 300_000),
    density=st.sampled_from([0, 2e-5, 0.01, 1]),
)
def test_every_rival_is_lossless(rival: Rival, seed: int, words: int, density: float) -> None:
    rng = np.random.default_rng(seed)
    old = rng.integers(0, 2**16, words).astype(np.uint16)
    new = old.copy()
    chosen = rng.random(words) < density
    new[chosen] ^= rng.integers(1, 2**16, int(chosen.sum())).astype(np.uint16)
    assert np.array_equal(rival.decode(old, rival.encode(old, new)), new)
