"""Shards become the bytes of the whole tensor, whatever the block."""

from __future__ import annotations

from itertools import pairwise
from math import prod

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from skerry.codec.digest import Bytes
from skerry.publisher.arrays import as_served
from skerry.publisher.errors import RankFailed
from skerry.publisher.sharding import Alone, TensorPart
from skerry.trainer.parts import Shard, flat_parts, serve_shards
from skerry.trainer.served import Form, Rule, RuleSet, Scales, serve
from tests.publisher.sharding.world import ThreadFabric, on_ranks


def joined(parts: list[TensorPart], nbytes: int) -> Bytes:
    """Put parts together; each byte must be there once."""
    whole, times = np.zeros(nbytes, np.uint8), np.zeros(nbytes, np.uint8)
    for part in parts:
        part.copy(0, part.data.size, whole[part.start : part.start + part.data.size])
        times[part.start : part.start + part.data.size] += 1
    assert (times == 1).all()
    return whole


@given(st.data())
def test_the_blocks_of_any_grid_are_flat_ranges_that_make_the_whole(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 4), max_size=3)))
    values = torch.arange(prod(shape), dtype=torch.int32).view(shape)
    cuts = [sorted(data.draw(st.sets(st.integers(0, n), max_size=2)) | {0, n}) for n in shape]
    parts = []
    for index in np.ndindex(*[len(c) - 1 for c in cuts]):
        block = [list(pairwise(c))[i] for c, i in zip(cuts, index, strict=True)]
        shard = Shard(
            name="t",
            shape=shape,
            offset=tuple(start for start, _ in block),
            values=values[tuple(slice(*b) for b in block)],
        )
        parts += flat_parts(shard, shard.values.contiguous())
    assert np.array_equal(joined(parts, values.nbytes), as_served("t", values).raw)


def rows_of(name: str, whole: torch.Tensor, rank: int, size: int) -> Shard:
    """Return a rank's rows as FSDP2 cuts them: `torch.chunk`, so the last ranks may have none."""
    each = -(-whole.shape[0] // size)
    start = min(rank * each, whole.shape[0])
    return Shard(
        name=name,
        shape=tuple(whole.shape),
        offset=(start, *[0] * (whole.dim() - 1)),
        values=whole[start : start + each],
    )


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 99), st.integers(1, 4), st.integers(1, 300), st.sampled_from(Scales))
def test_every_rank_casts_its_rows_to_the_bytes_of_the_whole_cast(
    seed: int, size: int, rows: int, scales: Scales
) -> None:
    random = torch.Generator().manual_seed(seed)
    model = {
        "a.weight": torch.randn(rows, 130, generator=random),
        "norm.weight": torch.randn(rows, generator=random),
        "router.weight": torch.randn(3, 5, generator=random),
    }
    rules = RuleSet(
        rules=(
            Rule(pattern="a.*", form=Form.FP8_BLOCK),
            Rule(pattern="norm.*", form=Form.BF16),
            Rule(pattern="router.*", form=Form.KEEP),
        ),
        scales=scales,
    )

    def work(fabric: ThreadFabric) -> list[TensorPart]:
        shards = [rows_of(name, w, fabric.rank, size) for name, w in model.items()]
        return serve_shards(rules, shards, fabric)

    parts = [part for rank in on_ranks(size, work) for part in rank]
    whole = {name: as_served(name, t) for name, t in serve(rules, model.items()).items()}
    assert {part.name for part in parts} == whole.keys()
    for name, tensor in whole.items():
        of_name = [part for part in parts if part.name == name]
        assert {(part.dtype, part.shape) for part in of_name} == {(tensor.dtype, tensor.shape)}
        assert np.array_equal(joined(of_name, tensor.raw.size), tensor.raw)


def test_a_nan_on_one_rank_is_refused_on_all_with_the_tensor_named() -> None:
    whole = torch.ones(4, 4)
    whole[3, 1] = float("nan")
    rules = RuleSet(rules=(Rule(pattern="*", form=Form.FP8_BLOCK),))

    def work(fabric: ThreadFabric) -> None:
        serve_shards(rules, [rows_of("l.weight", whole, fabric.rank, 2)], fabric)

    for error in on_ranks(2, work):
        assert isinstance(error, RankFailed)
        assert error.rank == 1
        assert "l.weight" in str(error)


@given(st.data())
def test_a_part_that_is_cast_when_it_is_copied_is_the_same_in_pieces(data: st.DataObject) -> None:
    words = data.draw(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=40))
    values = torch.from_numpy(np.array(words, np.uint32).view(np.float32))
    rules = data.draw(st.sampled_from([RuleSet.of(["*=BF16"]), RuleSet.of(["*=KEEP"])]))
    [part] = serve_shards(rules, [Shard.of("w", values)], Alone())
    [whole] = serve(rules, [("w", values)]).values()
    word = whole.raw.size // len(words)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(words)))) | {0, len(words)})
    found = np.zeros_like(whole.raw)
    for start, stop in pairwise(cuts):
        part.copy(start * word, stop * word, found[start * word : stop * word])
    assert np.array_equal(found, whole.raw)
