"""Which part of a version a pattern or a rank means."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.codec.digest import LEAF_BYTES
from skerry.codec.header import build_header
from skerry.codec.layout import Layout, Shard
from skerry.island_agent.errors import SelectionRefused
from skerry.island_agent.selection import Part, Selection

LAYERS, EXPERTS = 32, 8
WIDE = LEAF_BYTES // 1024  # rows of 512 BF16 words: one leaf has so many


def layout() -> Layout:
    """A model of the usual names; nothing of it exists but its header."""
    tensors: list[tuple[str, str, tuple[int, ...]]] = [
        ("model.embed_tokens.weight", "BF16", (8 * WIDE, 512)),
        ("lm_head.weight", "BF16", (8 * WIDE + 4, 512)),
        ("model.norm.weight", "BF16", (512,)),
    ]
    for n in range(LAYERS):
        tensors += [
            (f"model.layers.{n}.self_attn.q_proj.weight", "BF16", (4 * WIDE, 512)),
            (f"model.layers.{n}.self_attn.k_proj.weight", "BF16", (WIDE, 512)),
            (f"model.layers.{n}.mlp.down_proj.weight", "BF16", (512, 4 * WIDE)),
        ]
        tensors += [
            (f"model.layers.{n}.mlp.experts.{e}.up_proj.weight", "BF16", (64, 512))
            for e in range(EXPERTS)
        ]
    header = build_header("a", tensors)
    size = len(header.raw) + sum(t.nbytes for t in header.tensors)
    return Layout(shards=(Shard(name="model.safetensors", size=size, header=header.raw),))


LAYOUT = layout()


def part(*patterns: str, shard: str | None = None) -> Part:
    return Selection.parse(patterns, shard).resolve(LAYOUT)


def names(part: Part) -> set[str]:
    return {spec.name for spec, _, _ in part.ranges()}


def layers(part: Part) -> set[int]:
    return {int(name.split(".")[2]) for name in names(part) if ".layers." in name}


@given(first=st.integers(0, LAYERS - 1), last=st.integers(0, LAYERS - 1))
def test_a_range_of_numbers_selects_these_layers_and_nothing_else(first: int, last: int) -> None:
    if first > last:
        with pytest.raises(ValueError, match="empty range"):
            Selection.parse([f"model.layers.{first}-{last}.*"])
        return
    found = part(f"model.layers.{first}-{last}.*")
    assert layers(found) == set(range(first, last + 1))
    assert all(".layers." in name for name in names(found))


def test_patterns_add_up_and_exclusions_win_wherever_they_stand() -> None:
    found = part("!*.experts.*", "model.layers.0-1.*", "model.norm.weight")
    assert layers(found) == {0, 1}
    assert "model.norm.weight" in names(found)
    assert not any("experts" in name for name in names(found))
    everything_else = part("!model.layers.*")
    assert names(everything_else) == {
        "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
    }  # fmt: skip


@pytest.mark.parametrize("text", ["model.layer.0-3.*", "model.layers.32-40.*", "!x", "Model.*"])
def test_a_pattern_that_fits_nothing_is_refused_and_named(text: str) -> None:
    with pytest.raises(SelectionRefused, match="no tensor"):
        part("model.norm.weight", text)


def test_a_selection_of_nothing_is_refused() -> None:
    with pytest.raises(SelectionRefused, match="no byte"):
        part("model.norm.weight", "!model.norm.*")


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_pipeline_ranks_share_the_layers_out(ranks: int) -> None:
    parts = [part(shard=f"pp={ranks},rank={rank}") for rank in range(ranks)]
    found = [layers(one) for one in parts]
    assert set().union(*found) == set(range(LAYERS))
    assert sum(map(len, found)) == LAYERS
    assert all("model.embed_tokens.weight" in names(one) for one in parts)


def test_expert_ranks_share_the_experts_and_keep_everything_else() -> None:
    found = part(shard="ep=4,rank=3")
    experts = {int(n.split("experts.")[1].split(".")[0]) for n in names(found) if "experts" in n}
    assert experts == {6, 7}
    assert len(names(found)) == 3 + LAYERS * (3 + 2)


@pytest.mark.parametrize("shard", ["pp=5,rank=0", "ep=3,rank=1", "pp=64,rank=1"])
def test_an_uneven_split_is_refused_since_engines_differ_there(shard: str) -> None:
    with pytest.raises(SelectionRefused, match="evenly"):
        part(shard=shard)


@given(ranks=st.sampled_from([1, 2, 3, 4, 8, 16]), data=st.data())
def test_a_tensor_parallel_rank_holds_at_least_its_rows(ranks: int, data: st.DataObject) -> None:
    rank = data.draw(st.integers(0, ranks - 1))
    found = part(shard=f"tp={ranks},rank={rank}")
    for spec in LAYOUT.tensors:
        rows = spec.shape[0]
        whole = not spec.name.endswith(("q_proj.weight", "embed_tokens.weight", "up_proj.weight"))
        if whole or rows % ranks:
            assert found.covers(spec, 0, spec.nbytes), spec.name
        else:
            each = spec.nbytes // ranks
            assert found.covers(spec, rank * each, (rank + 1) * each), spec.name


def test_a_tensor_parallel_rank_leaves_out_the_rows_of_others() -> None:
    found = part(shard="tp=4,rank=1")
    embed = next(spec for spec in LAYOUT.tensors if spec.name == "model.embed_tokens.weight")
    head = next(spec for spec in LAYOUT.tensors if spec.name == "lm_head.weight")
    assert found.of(embed) == range(2, 4)
    assert len(found.of(head)) == 9  # 64 does not divide its rows: engines would pad them


def test_axes_go_together() -> None:
    found = part("!model.embed_tokens.*", shard="pp=4,pp_rank=1,tp=2,tp_rank=0")
    assert layers(found) == set(range(8, 16))
    query = next(s for s in LAYOUT.tensors if s.name == "model.layers.8.self_attn.q_proj.weight")
    assert found.of(query) == range(2)
    assert found.nbytes < found.weights_bytes / 4


@pytest.mark.parametrize(
    "text",
    ["", "tp", "tp=2", "tp=2,rank=2", "tp=0,rank=0", "rank=1", "tp=2,pp=2,rank=0", "tp=2,tp=2",
     "tp=2,tp_rank=0,rank=0", "dp=2,rank=0", "tp=2,rank=-1", "tp=2,rank=0,pp_rank=1"],
)  # fmt: skip
def test_a_malformed_layout_is_an_error_and_never_everything(text: str) -> None:
    with pytest.raises(ValueError, match=r"^shard: "):
        Selection.parse((), text)


@pytest.mark.parametrize("patterns", [[], [""], ["!"], ["a,b"], ["a;b"], ["a\nb"]])
def test_a_malformed_pattern_is_an_error(patterns: list[str]) -> None:
    with pytest.raises(ValueError, match=r"^tensors: "):
        Selection.parse(patterns)


@given(
    patterns=st.lists(st.from_regex(r"!?[a-z*?.]{1,8}", fullmatch=True), max_size=4),
    shard=st.sampled_from([None, "tp=4,rank=1", "pp=2,pp_rank=0,ep=4,ep_rank=3"]),
)
def test_a_selection_is_its_text(patterns: list[str], shard: str | None) -> None:
    if not patterns and shard is None:
        return
    selection = Selection.parse(patterns, shard)
    assert Selection.from_text(str(selection)) == selection
