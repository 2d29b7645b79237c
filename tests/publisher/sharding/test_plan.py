"""Who owns what: every byte once, at the lowest rank that holds it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.codec.digest import LEAF_BYTES
from skerry.publisher.errors import ShardMismatch
from skerry.publisher.sharding.plan import Held, plan_shards


def held(name: str, nbytes: int, start: int, stop: int) -> Held:
    return Held(name=name, dtype="U8", shape=(nbytes,), start=start, stop=stop)


@given(st.data())
def test_every_byte_has_one_source_the_lowest_rank_that_holds_it(data: st.DataObject) -> None:
    nbytes = data.draw(st.integers(0, 60) | st.integers(LEAF_BYTES - 2, 3 * LEAF_BYTES))
    cuts = sorted(data.draw(st.sets(st.integers(0, nbytes), max_size=6)) | {0, nbytes})
    spans = list(pairwise(cuts)) or [(0, 0)]
    size = data.draw(st.integers(1, 4))
    holders = [
        data.draw(st.sets(st.integers(0, size - 1), min_size=1), label=str(span)) for span in spans
    ]
    ranks_of = list(zip(spans, holders, strict=True))
    plan = plan_shards(
        [
            [held("t", nbytes, *span) for span, ranks in ranks_of if rank in ranks]
            for rank in range(size)
        ]
    )
    at = 0
    for route in plan.routes:
        assert route.start == at < route.stop
        assert route.start // LEAF_BYTES == (route.stop - 1) // LEAF_BYTES == route.leaf[1]
        for (start, stop), ranks in ranks_of:
            if start < route.stop and route.start < stop:
                assert route.source == min(ranks)
        at = route.stop
    assert at == nbytes
    for leaf, owner in plan.owners.items():
        assert owner == min(route.source for route in plan.routes if route.leaf == leaf)
        assert {route.owner for route in plan.routes if route.leaf == leaf} == {owner}


@pytest.mark.parametrize(
    ("ranks", "rule"),
    [
        ([[(0, 4)], [(5, 10)]], r"no rank holds bytes \[4, 5\)"),
        ([[(1, 10)]], r"no rank holds bytes \[0, 1\)"),
        ([[(0, 9)]], r"no rank holds bytes \[9, 10\)"),
        ([[(0, 6), (5, 10)]], "rank 0 holds byte 5 twice"),
        ([[(0, 11)]], r"rank 0 holds \[0, 11\) of 10 bytes"),
    ],
)
def test_what_is_no_whole_tensor_is_refused_with_its_name(
    ranks: list[list[tuple[int, int]]], rule: str
) -> None:
    with pytest.raises(ShardMismatch, match=f"^t: {rule}"):
        plan_shards([[held("t", 10, *span) for span in spans] for spans in ranks])


def test_ranks_that_differ_about_a_tensor_are_refused() -> None:
    other = Held(name="t", dtype="I8", shape=(10,), start=0, stop=10)
    with pytest.raises(ShardMismatch, match=r"^t: I8 \[10\] at rank 1, U8 \[10\] before it"):
        plan_shards([[held("t", 10, 0, 10)], [other]])
