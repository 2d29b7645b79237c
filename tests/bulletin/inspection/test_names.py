"""Layer and projection, by what models call their tensors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.bulletin.inspection.names import Place, place

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60)


@given(names | st.from_regex(r"(model\.)?layers\.[0-9]{1,4}(\.[a-z_]{1,9}){1,4}", fullmatch=True))
def test_every_name_has_a_place(name: str) -> None:
    assert place(name).projection


@given(
    st.from_regex(r"([a-z_]{1,9}\.){1,3}weight", fullmatch=True),
    st.integers(0, 999),
    st.integers(0, 999),
)
def test_layers_differ_in_their_number_alone(rest: str, a: int, b: int) -> None:
    one, other = (place(f"model.layers.{n}.{rest}") for n in (a, b))
    assert (one.layer, other.layer) == (a, b)
    assert one.projection == other.projection


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("model.layers.12.self_attn.q_proj.weight", Place(12, "q_proj")),
        ("model.layers.12.self_attn.q_proj.bias", Place(12, "q_proj.bias")),
        ("model.layers.12.self_attn.q_proj.weight_scale_inv", Place(12, "q_proj.scale")),
        ("model.layers.3.mlp.experts.17.gate_proj.weight", Place(3, "experts.gate_proj")),
        ("model.layers.3.mlp.shared_experts.up_proj.weight", Place(3, "up_proj")),
        ("model.layers.3.input_layernorm.weight", Place(3, "input_layernorm")),
        ("transformer.h.0.attn.c_attn.weight", Place(0, "c_attn")),
        ("model.embed_tokens.weight", Place(None, "embed_tokens")),
        ("lm_head.weight", Place(None, "lm_head")),
        ("w", Place(None, "w")),
    ],
)
def test_names_of_real_models(name: str, expected: Place) -> None:
    assert place(name) == expected
