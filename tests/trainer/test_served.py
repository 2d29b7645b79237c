"""Served precision: FP8 beside an independent float64 reference, and rules that are explicit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from skerry.bulletin.reader import BulletinReader
from skerry.bulletin.stores import MemoryStore
from skerry.publisher import Publisher
from skerry.publisher.arrays import Served, as_served
from skerry.trainer import fp8
from skerry.trainer.errors import NoRule, NotFinite, Unservable
from skerry.trainer.served import BF16_RULES, Form, Rule, RuleSet, Scales, serve

U8 = npt.NDArray[np.uint8]
F64 = npt.NDArray[np.float64]
FP8 = Rule(pattern="*", form=Form.FP8_BLOCK)


def e4m3(code: int) -> float:
    """Return the value of a non-negative finite code, 0x00 to 0x7E, from its definition."""
    exponent, mantissa = code >> 3, code & 7
    return math.ldexp(mantissa, -9) if exponent == 0 else math.ldexp(8 + mantissa, exponent - 10)


E4M3 = [e4m3(code) for code in range(0x7F)]


def to_e4m3(value: float) -> int:
    """Round to the nearest code, ties to the even one, by exhaustive search; saturate."""
    magnitude = min(abs(value), E4M3[-1])
    nearest = min(range(0x7F), key=lambda c: (abs(E4M3[c] - magnitude), c & 1))
    return nearest | (0x80 if math.copysign(1.0, value) < 0 else 0)


def f32(value: float) -> float:
    """Round a float64 to float32: for one operation on float32 numbers, the float32 operation."""
    return float(np.float32(value))


def reference(values: F64, *, power_of_two: bool) -> tuple[U8, F64]:
    """Quantise BF16 numbers block by block in float64, rounded to float32 where the cast is."""
    rows, columns = values.shape
    codes = np.zeros(values.shape, np.uint8)
    scales = np.zeros((-(-rows // 128), -(-columns // 128)))
    for i, j in np.ndindex(scales.shape):
        part = (slice(128 * i, 128 * i + 128), slice(128 * j, 128 * j + 128))
        block = values[part]
        scale = f32(max(float(np.abs(block).max()), f32(1e-4)) / 448.0)
        if power_of_two:
            mantissa, exponent = math.frexp(scale)  # scale = mantissa * 2^exponent, 0.5 <= m < 1
            scale = math.ldexp(1.0, exponent - (mantissa == 0.5))
        inverse = f32(1.0 / scale)
        scaled = (block * inverse).astype(np.float32).astype(np.float64)
        bits, place = np.unique(scaled.view(np.uint64), return_inverse=True)  # -0.0 is not 0.0
        code_of = np.array([to_e4m3(float(v)) for v in bits.view(np.float64)])
        codes[part] = code_of[place].reshape(block.shape)
        scales[i, j] = scale
    return codes, scales


def matrix(bits: list[int], shape: tuple[int, int]) -> torch.Tensor:
    """Return BF16 numbers of these bits, repeated to fill the shape."""
    words = np.resize(np.array(bits, np.uint16), shape)
    return torch.from_numpy(words.view(np.int16).copy()).view(torch.bfloat16)


def codes_of(served: Mapping[str, Served], name: str = "a.weight") -> U8:
    tensor = as_served(name, served[name])
    assert tensor.dtype == "F8_E4M3"
    return tensor.raw.reshape(tensor.shape)


def assert_reference(values: torch.Tensor) -> None:
    doubles = values.double().numpy()
    for scales in Scales:
        codes, grid = reference(doubles, power_of_two=scales is not Scales.F32)
        rules = RuleSet(rules=(FP8,), scales=scales)
        served = serve(rules, [("a.weight", values)])
        assert np.array_equal(codes_of(served), codes)
        stored = as_served("", served[rules.scale_name("a.weight")])
        assert stored.shape == grid.shape
        if scales is Scales.UE8M0:
            assert stored.dtype == "F8_E8M0"
            assert np.array_equal(stored.raw, np.log2(grid).astype(np.int64).reshape(-1) + 127)
        else:
            assert stored.dtype == "F32"
            expected = grid.astype(np.float32).view(np.uint32).reshape(-1)
            assert np.array_equal(stored.raw.view(np.uint32), expected)


finite_bits = st.integers(0, 0xFFFF).filter(lambda b: b & 0x7F80 != 0x7F80)
near_one = st.integers(0x3800, 0x4000)
shapes = st.tuples(st.integers(1, 5) | st.integers(126, 131), st.integers(1, 5) | st.just(129))


@settings(max_examples=25, deadline=None)
@given(st.lists(finite_bits, min_size=1, max_size=60) | st.lists(near_one, min_size=3), shapes)
def test_equals_the_float64_reference_bit_for_bit(bits: list[int], shape: tuple[int, int]) -> None:
    assert_reference(matrix(bits, shape))


@pytest.mark.parametrize(
    "bits",
    [
        pytest.param([0x0000], id="all zero"),
        pytest.param([0x0000, 0x8000], id="zeros of both signs"),
        pytest.param([0x0001, 0x8001, 0x0000], id="the smallest subnormals"),
        pytest.param([0x007F, 0x8040], id="amax subnormal"),
        pytest.param([0x38D1, 0x38D2, 0x0001], id="amax beside 1e-4"),
        pytest.param([0x7F7F, 0xFF7F, 0x3F80], id="the largest numbers"),
        pytest.param([0x43E0, 0x3B00, 0x3A80, 0xBA80], id="scale 1, subnormal codes and ties"),
        pytest.param([0x43E0, 0x4188, 0x418C, 0x4194, 0x419C], id="scale 1, ties between codes"),
        pytest.param([0x3F8A, 0x384F, 0x38CF], id="other bytes if divided by the scale"),
        pytest.param([0x3F98, 0x3864, 0x38E4], id="other bytes if divided, another amax"),
        pytest.param([0x4360, 0x43E0], id="amax a power of two times 448"),
    ],
)
def test_edge_cases_equal_the_float64_reference(bits: list[int]) -> None:
    assert_reference(matrix(bits, (3, 131)))


def test_an_all_zero_block_has_a_scale_and_keeps_its_signs() -> None:
    served = serve(RuleSet(rules=(FP8,)), [("a.weight", matrix([0x0000, 0x8000], (1, 4)))])
    assert codes_of(served).tolist() == [[0x00, 0x80, 0x00, 0x80]]
    scale = as_served("", served["a.weight_scale_inv"]).raw.view(np.float32)
    assert scale[0] == np.float32(1e-4) / np.float32(448)


@pytest.mark.parametrize("bits", [0x7F80, 0xFF80, 0x7FC0, 0x7F81])
def test_inf_and_nan_are_refused_with_the_tensor_named(bits: int) -> None:
    values = matrix([0x3F80], (2, 200))
    values.view(torch.int16)[1, 150] = bits - 0x10000 if bits >= 0x8000 else bits
    tensors = [("model.a.weight", torch.ones(2, 2)), ("model.b.weight", values)]
    with pytest.raises(NotFinite, match=r"^model\.b\.weight: .* at \[1, 150\]") as caught:
        serve(RuleSet(rules=(FP8,)), tensors)
    assert caught.value.tensor == "model.b.weight"


def test_what_only_becomes_infinite_as_bf16_is_refused_too() -> None:
    largest = torch.full((1, 1), float(np.finfo(np.float32).max))
    with pytest.raises(NotFinite, match="inf"):
        serve(RuleSet(rules=(FP8,)), [("a.weight", largest)])


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=20, deadline=None)
def test_fp8_is_made_from_the_bf16_rounded_weights(seed: int) -> None:
    master = torch.randn(130, 3, generator=torch.Generator().manual_seed(seed))
    rules = RuleSet(rules=(FP8,))
    once, twice = (serve(rules, [("a.weight", w)]) for w in (master, master.to(torch.bfloat16)))
    for name in once:
        assert np.array_equal(as_served("", once[name]).raw, as_served("", twice[name]).raw)


@given(st.lists(st.integers(0, 300), max_size=4), st.integers(0, 99), st.booleans())
@settings(max_examples=25, deadline=None)
def test_any_split_into_rows_gives_the_bytes_of_the_whole(
    cuts: list[int], seed: int, power_of_two: bool
) -> None:
    whole = torch.randn(300, 130, generator=torch.Generator().manual_seed(seed)).bfloat16()
    bounds = [0, *sorted(cuts), 300]
    parts = [(a, whole[a:b]) for a, b in pairwise(bounds)]
    grids = [fp8.block_amax(rows, first, (300, 130)) for first, rows in parts]
    amax = torch.stack(grids).amax(0)
    assert torch.equal(amax, fp8.block_amax(whole, 0, (300, 130)))
    scale = fp8.scales(amax, power_of_two=power_of_two)
    joined = torch.cat([fp8.quantise(rows, first, scale) for first, rows in parts])
    assert torch.equal(joined, fp8.quantise(whole, 0, scale))


def test_the_first_rule_that_matches_decides_and_none_is_an_error() -> None:
    rules = RuleSet(
        rules=(
            Rule(pattern="*.gate.weight", form=Form.KEEP),
            Rule(pattern="*norm.weight", form=Form.BF16),
            Rule(pattern="*_proj.weight", form=Form.FP8_BLOCK),
        )
    )
    tensors = [
        ("l.gate.weight", torch.tensor([[1.0000001]])),
        ("l.norm.weight", torch.ones(3)),
        ("l.q_proj.weight", torch.ones(2, 3)),
    ]
    served = serve(rules, tensors)
    assert {name: as_served(name, tensor).dtype for name, tensor in served.items()} == {
        "l.gate.weight": "F32",
        "l.norm.weight": "BF16",
        "l.q_proj.weight": "F8_E4M3",
        "l.q_proj.weight_scale_inv": "F32",
    }
    with pytest.raises(NoRule, match=r"^lm_head\.weight: "):
        serve(rules, [("lm_head.weight", torch.ones(1))])


def test_packed_formats_pass_as_they_are() -> None:
    packed = torch.arange(256, dtype=torch.uint8).view(2, 128)
    exponents = torch.arange(8, dtype=torch.uint8).view(torch.float8_e8m0fnu)
    rules = RuleSet(rules=(Rule(pattern="*", form=Form.KEEP),))
    served = serve(rules, [("x.blocks", packed), ("x.scales", exponents)])
    assert as_served("", served["x.blocks"]).raw.tolist() == list(range(256))
    assert as_served("", served["x.scales"]).dtype == "F8_E8M0"
    assert as_served("", served["x.scales"]).raw.tolist() == list(range(8))


@pytest.mark.parametrize("form", list(Form))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_served_is_a_copy(form: Form, dtype: torch.dtype) -> None:
    values = torch.ones(2, 2, dtype=dtype)
    served = serve(RuleSet(rules=(Rule(pattern="*", form=form),)), [("a.weight", values)])
    before = as_served("", served["a.weight"]).raw.copy()
    values.zero_()
    assert np.array_equal(as_served("", served["a.weight"]).raw, before)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("a.weight", torch.ones(2, 2, dtype=torch.float16)),
        ("a.weight", torch.ones(2, 2, 2)),
        ("a.bias", torch.ones(2, 2)),
    ],
)
def test_what_cannot_be_block_scaled_is_refused(name: str, values: torch.Tensor) -> None:
    with pytest.raises(Unservable, match=f"^{name}: "):
        serve(RuleSet(rules=(FP8,)), [(name, values)])


def test_scales_never_take_the_place_of_another_tensor() -> None:
    rules = RuleSet(rules=(Rule(pattern="*_scale_inv", form=Form.KEEP), FP8))
    tensors = [("a.weight_scale_inv", torch.ones(1, 1)), ("a.weight", torch.ones(1, 1))]
    with pytest.raises(Unservable, match="is there already"):
        serve(rules, tensors)


rule_sets = st.builds(
    RuleSet,
    rules=st.lists(
        st.builds(Rule, pattern=st.text(max_size=8), form=st.sampled_from(Form)), max_size=4
    ).map(tuple),
    scales=st.sampled_from(Scales),
)


@given(rule_sets)
def test_a_recipe_gives_its_rules_back(rules: RuleSet) -> None:
    assert RuleSet.from_recipe(rules.recipe()) == rules


def test_a_recipe_of_other_arithmetic_is_refused() -> None:
    recipe = BF16_RULES.recipe()
    other = {**recipe, "fp8": {**dict(recipe["fp8"]), "arithmetic": "x / scale"}}  # type: ignore[call-overload]
    for wrong in (other, {}, {"dtype": "BF16"}, {**recipe, "more": 1}):
        with pytest.raises(ValueError, match="not a recipe"):
            RuleSet.from_recipe(wrong)


def test_the_manifest_of_a_version_says_how_each_tensor_was_made() -> None:
    rules = RuleSet(rules=(Rule(pattern="norm.*", form=Form.BF16), FP8), scales=Scales.UE8M0_F32)
    store = MemoryStore()
    weights = [("norm.weight", torch.ones(4)), ("a.weight", torch.ones(2, 2))]
    Publisher.open(store).publish_arrays(serve(rules, weights), step=0, recipe=rules.recipe())
    reader = BulletinReader(store)
    reader.refresh()
    commit = reader.state.commits[0]
    recorded = RuleSet.from_recipe(reader.manifest(commit.manifest).recipe)
    assert recorded == rules
    dtypes = {spec.name: spec.dtype for spec in reader.layout(commit.layout).tensors}
    served = {Form.BF16: "BF16", Form.FP8_BLOCK: "F8_E4M3"}
    for name, _ in weights:
        assert dtypes[name] == served[recorded.form(name)]
