"""The coder stays near the bound that the old exponents set (docs/patch-format.md, "Size")."""

from __future__ import annotations

import numpy as np
import pytest

from skerry.codec.bound import conditioned_bits
from skerry.codec.encode import encode_pack
from tests.codec.checkpoints import weights_of

pytestmark = pytest.mark.usefixtures("each_kernel")


def to_bf16(values: np.ndarray) -> np.ndarray:
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2")


@pytest.mark.parametrize(("lr", "density"), [(1e-6, 0.01), (1e-5, 0.07)])
def test_a_step_costs_within_four_percent_of_the_bound(lr: float, density: float) -> None:
    rng = np.random.default_rng(5)
    master = rng.standard_normal(1 << 20) * 0.02
    old = to_bf16(master)
    new = to_bf16(master + rng.standard_normal(1 << 20) * lr * 0.25)
    assert 0.5 * density < (old != new).mean() < 2 * density
    base = weights_of({"w": ("BF16", old.view(np.uint8))})
    result = base.replace(w=new.view(np.uint8))
    pack = encode_pack(base.layout, base.read, result.read, base=base.digest().version())
    # All framing counted, which weighs most in a pack of a single chunk.
    bound = conditioned_bits([(base.layout.tensors[0].type, old, new)])
    assert 8 * len(pack.data) < 1.04 * bound.total
