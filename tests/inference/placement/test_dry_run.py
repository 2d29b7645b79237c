"""What a loader does to a tensor is a box, or it is said why it is none; nothing is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
import torch

from skerry.codec.tensors import TensorSpec
from skerry.inference.placement.dry_run import Recording, Weights, record

A = TensorSpec(name="a", dtype="BF16", shape=(4, 6), file="", offset=0, nbytes=48)
B = TensorSpec(name="b", dtype="BF16", shape=(6,), file="", offset=0, nbytes=12)
Loader = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]  # parameter, a, b


def run(load: Loader, *, dtype: torch.dtype = torch.bfloat16) -> tuple[Recording, torch.Tensor]:
    parameter = torch.full((8, 6), 7, dtype=dtype)

    def loader(weights: Weights) -> None:
        given = dict(weights)
        load(parameter, given["a"], given["b"])

    return record({"p": parameter}, [A, B], loader), parameter


@pytest.mark.parametrize(
    ("load", "places"),
    [
        (lambda p, a, b: p[2:6].copy_(a), [("a", 0, (6, 1), 12, (6, 1))]),
        (lambda p, a, b: p[:2, :3].copy_(a[2:, 3:]), [("a", 15, (6, 1), 0, (6, 1))]),
        (lambda p, a, b: p[:6, :4].copy_(a.t()), [("a", 0, (1, 6), 0, (6, 1))]),
        (lambda p, a, b: p[7].copy_(b), [("b", 0, (1,), 42, (1,))]),
        (lambda p, a, b: p[7:8].copy_(b), [("b", 0, (6, 1), 42, (6, 1))]),
        (lambda p, a, b: p.__setitem__(slice(0, 4), a), [("a", 0, (6, 1), 0, (6, 1))]),
        (lambda p, a, b: p[:4].copy_(a.to("cpu", torch.bfloat16)), [("a", 0, (6, 1), 0, (6, 1))]),
        (lambda p, a, b: [p[i].copy_(x) for i, x in enumerate(a.chunk(4))], None),
    ],
)
def test_a_copy_of_a_view_is_a_box(
    load: Loader, places: list[tuple[str, int, tuple[int, ...], int, tuple[int, ...]]] | None
) -> None:
    recording, parameter = run(load)
    assert recording.computed == {}
    assert bool((parameter == 7).all())
    found = [(b.tensor, b.start, b.strides, b.at, b.steps) for b in recording.boxes]
    if places is None:
        assert [(name, start, at) for name, start, _, at, _ in found] == [
            ("a", 6 * i, 6 * i) for i in range(4)
        ]
    else:
        assert found == places


@pytest.mark.parametrize(
    ("load", "why"),
    [
        (lambda p, a, b: p[:4].copy_(a * 2), "computed from a"),
        (lambda p, a, b: p[:4].copy_(a * b), "computed from a, b"),
        (lambda p, a, b: p[:4].copy_(a.add_(1)), "computed from a"),
        (lambda p, a, b: p[:6, :4].copy_(a.t().contiguous()), "computed from a"),
        (lambda p, a, b: p.copy_(torch.cat([a, a])), "computed from a"),
        (lambda p, a, b: p[:4].copy_(b), "more than once"),
    ],
)
def test_what_is_no_plain_copy_is_said_to_be_computed(load: Loader, why: str) -> None:
    recording, parameter = run(load)
    assert recording.boxes == []
    assert why in recording.computed["p"]
    assert bool((parameter == 7).all())


def test_a_cast_is_said_to_be_one() -> None:
    """A bias that the model keeps in more bits than the checkpoint has (case E-4)."""
    recording, _ = run(lambda p, a, b: p[7].copy_(b), dtype=torch.float32)
    assert recording.computed == {"p": "b is cast from torch.bfloat16 to torch.float32"}
    assert recording.sources == {"p": {"b"}}


def test_sources_are_found_through_whatever_is_computed() -> None:
    def load(p: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
        scratch = torch.empty(4, 6, dtype=a.dtype, device="meta")
        scratch[1:3].copy_(a[:2])
        scratch.mul_(torch.stack([b, b, b, b]))
        p[:4].copy_(scratch)

    recording, _ = run(load)
    assert recording.sources == {"p": {"a", "b"}}


def test_padding_that_a_loader_fills_is_left_alone() -> None:
    recording, parameter = run(lambda p, a, b: (p[:4].copy_(a), p[4:].fill_(0), p[4:].zero_()))
    assert len(recording.boxes) == 1
    assert bool((parameter == 7).all())


def test_a_loader_that_looks_at_values_cannot_run_dry() -> None:
    def load(weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        for _, tensor in weights:
            if tensor.sum().item() > 0:
                return

    with pytest.raises(RuntimeError):
        record({"p": torch.zeros(1)}, [A], load)


def test_a_dtype_that_torch_lacks_is_refused_by_name() -> None:
    packed = TensorSpec(name="a", dtype="F4", shape=(4,), file="", offset=0, nbytes=2)
    with pytest.raises(TypeError, match="F4"):
        record({"p": torch.zeros(1)}, [packed], list)
