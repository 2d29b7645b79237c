"""Where an element of a checkpoint is found equals where copying the whole tensor puts it."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from skerry.inference.placement.box import Box
from skerry.inference.placement.coverage import uncovered
from skerry.inference.placement.permutation import discover
from skerry.inference.placement.placement import box_words


@st.composite
def boxes(draw: st.DrawFn) -> tuple[Box, tuple[int, ...]]:
    """A slice of a tensor of some shape, maybe transposed, copied into a slice of a parameter."""
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple))
    source = torch.empty(shape, device="meta")
    for axis, size in enumerate(shape):
        start = draw(st.integers(0, size - 1))
        source = source.narrow(axis, start, draw(st.integers(1, size - start)))
    if draw(st.booleans()):
        source = source.transpose(0, source.dim() - 1)
    room = tuple(n + draw(st.integers(0, 3)) for n in source.shape)
    target = torch.empty(room, device="meta")
    for axis, size in enumerate(source.shape):
        target = target.narrow(axis, draw(st.integers(0, room[axis] - size)), size)
    box = Box(
        tensor="t",
        start=int(source.storage_offset()),
        strides=tuple(source.stride()),
        shape=tuple(source.shape),
        parameter="p",
        at=int(target.storage_offset()),
        steps=tuple(target.stride()),
    )
    return box, (*shape, *room)


@given(boxes(), st.data())
def test_find_is_the_inverse_of_the_copy(
    drawn: tuple[Box, tuple[int, ...]], data: st.DataObject
) -> None:
    box, _ = drawn
    tensor = torch.arange(1, 200)
    parameter = torch.zeros(600, dtype=torch.int64)
    torch.as_strided(parameter, box.shape, box.steps, box.at).copy_(
        torch.as_strided(tensor, box.shape, box.strides, box.start)
    )
    chosen = data.draw(st.sets(st.integers(0, 150)))
    positions = torch.tensor(sorted(chosen), dtype=torch.int64)
    index, where = box.find(positions)
    found = positions[index]
    assert torch.equal(parameter[where], found + 1)
    copied = {int(v) - 1 for v in parameter[parameter > 0]}
    assert set(found.tolist()) == chosen & copied
    assert box.is_injective
    assert torch.equal(
        parameter[box_words(box).view(-1)].sort().values, parameter[parameter > 0].sort().values
    )
    assert box.last < 199
    assert box.end < 600


def test_a_broadcast_copy_is_no_box() -> None:
    for strides, steps in (((0, 1), (4, 1)), ((4, 1), (0, 1)), ((1, 1), (4, 1))):
        box = Box(
            tensor="t", start=0, strides=strides, shape=(2, 4), parameter="p", at=0, steps=steps
        )
        assert not box.is_injective


@given(st.integers(1, 6), st.integers(1, 6), st.data())
def test_uncovered_counts_what_no_box_has(rows: int, columns: int, data: st.DataObject) -> None:
    whole = torch.empty((rows, columns), device="meta")
    marks = torch.zeros(rows, columns, dtype=torch.bool)
    found = []
    for _ in range(data.draw(st.integers(0, 3))):
        top, left = data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, columns - 1))
        height = data.draw(st.integers(1, rows - top))
        width = data.draw(st.integers(1, columns - left))
        part = whole[top : top + height, left : left + width]
        marks[top : top + height, left : left + width] = True
        found.append(
            Box(
                tensor="t",
                start=int(part.storage_offset()),
                strides=tuple(part.stride()),
                shape=tuple(part.shape),
                parameter="p",
                at=0,
                steps=tuple(part.stride()),
            )
        )
    assert uncovered(rows * columns, found) == int((~marks).sum())


def test_a_packer_tells_its_own_order() -> None:
    def pack(block: torch.Tensor) -> torch.Tensor:
        return block.view(4, 8, 300).transpose(0, 2).contiguous()

    weights = torch.arange(2 * 32 * 300, dtype=torch.int64)
    order = discover((32, 300), pack)
    packed = torch.cat([pack(part.view(32, 300)).view(-1) for part in weights.view(2, -1)])
    assert torch.equal(packed[order.apply(weights)], weights)
