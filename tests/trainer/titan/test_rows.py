"""What became of each row is read off hooks and adapter; what is not about rows is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from skerry.trainer.errors import Unservable
from tests.trainer.installed import require

require("torchtitan")

from skerry.trainer.titan.rows import row_map  # noqa: E402
from skerry.trainer.titan.shards import LocalShards  # noqa: E402

State = dict[str, torch.Tensor]


class Layer(nn.Module):
    """Saves its fused matrix as two, as torchtitan's fused attention does."""

    def __init__(self) -> None:
        super().__init__()
        self.fused = nn.Linear(3, 4, bias=False)
        self.experts = nn.Parameter(torch.randn(2, 3, 5))
        self.register_buffer("bias", torch.randn(4))
        self.register_buffer("scratch", torch.randn(9), persistent=False)
        self.register_state_dict_post_hook(self._split)  # type: ignore[no-untyped-call]

    @staticmethod
    def _split(module: nn.Module, state: State, prefix: str, _: object) -> None:
        fused = state.pop(f"{prefix}fused.weight")
        state[f"{prefix}even"] = fused[0::2].contiguous()
        state[f"{prefix}odd"] = fused[1::2].contiguous()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({"0": Layer(), "1": Layer()})
        self.norm = nn.LayerNorm(3, bias=False)
        self.head = nn.Linear(3, 6, bias=False)
        self.embedding = nn.Embedding(6, 3)
        self.embedding.weight = self.head.weight


class Adapter:
    """Gives other names, splits experts, and does one thing more with `model.layers.1.odd`."""

    def __init__(self, more: Callable[[torch.Tensor], torch.Tensor] = lambda t: t) -> None:
        self._more = more

    def to_hf(self, state_dict: State) -> State:
        found: State = {}
        for name, tensor in state_dict.items():
            if name == "head.weight":
                continue  # tied
            if name.endswith("experts"):
                found |= {f"model.{name}.{i}": part for i, part in enumerate(tensor.unbind())}
            else:
                found[f"model.{name}"] = self._more(tensor) if name == "layers.1.odd" else tensor
        return found


def meta() -> Model:
    with torch.device("meta"):
        return Model()


def test_rows_of_a_single_process_are_what_the_adapter_makes_of_its_state() -> None:
    model, adapter = Model(), Adapter(lambda t: t.flip(0))
    expected = adapter.to_hf(dict(model.state_dict()))
    found = {name: torch.full_like(tensor, torch.nan) for name, tensor in expected.items()}
    for shard in LocalShards([model], row_map(meta(), adapter)).now():
        assert shard.shape == tuple(expected[shard.name].shape)
        stop = shard.offset[0] + shard.values.shape[0]
        found[shard.name][shard.offset[0] : stop] = shard.values
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    assert "model.layers.0.bias" in found
    assert "model.layers.0.scratch" not in found


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (lambda t: t.flip(1), "moves columns"),
        (lambda t: t[:, :2], "takes some columns"),
        (lambda t: t.T.contiguous(), "does not keep rows whole"),
        (lambda t: t.reshape(-1), "moves columns"),
        (lambda t: t.expand(2, *t.shape), "1 or 2 dimensions"),
    ],
)
def test_what_is_no_movement_of_whole_rows_is_refused_with_the_tensor_named(
    more: Callable[[torch.Tensor], torch.Tensor], why: str
) -> None:
    with pytest.raises(Unservable, match=rf"model\.layers\.1\.odd.*{why}"):
        row_map(meta(), Adapter(more))


def test_an_adapter_that_needs_more_than_one_layer_is_refused() -> None:
    class Joining(Adapter):
        def to_hf(self, state_dict: State) -> State:
            both = [
                state_dict[f"layers.{i}.bias"] for i in "01" if f"layers.{i}.bias" in state_dict
            ]
            found = super().to_hf(state_dict)
            return {**found, "both": torch.cat(both)} if len(both) == 2 else found

    with pytest.raises(Unservable, match=r"both: .*the whole model alone"):
        row_map(meta(), Joining())


def test_a_local_tensor_that_does_not_say_so_is_refused() -> None:
    model, tensors = Model(), row_map(meta(), Adapter())
    model.norm.weight = nn.Parameter(torch.ones(2))
    with pytest.raises(Unservable, match=r"norm.weight: expected shape \[3\], found \[2\]"):
        LocalShards([model], tensors)
