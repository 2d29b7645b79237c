"""Where each row of a Hugging Face tensor lies in torchtitan's own tensors, without any weights.

Numbers of rows go through the state-dict hooks and the adapter that torchtitan's checkpointer uses,
in place of weights; what comes out says which row became which.  Numbers of columns go the same
way, and have to come out in order.  So a map is proven, not assumed: an adapter that computes with
weights, or moves anything smaller than a row, is refused with the tensor's name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import torch
from torch import nn

from skerry.trainer.errors import Unservable

Tensors = Mapping[str, torch.Tensor]


class Adapter(Protocol):
    """What is needed of a torchtitan state-dict adapter."""

    def to_hf(self, state_dict: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Row `rows[i]` of the native tensor is row `at[i]` of the HF tensor; `at` ascends.

    Rows are counted over all dimensions but the last; those of a vector are its elements.
    """

    native: str
    native_shape: tuple[int, ...]
    rows: torch.Tensor
    at: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class HfTensor:
    """A tensor under its Hugging Face name, and where all of its rows come from."""

    name: str
    shape: tuple[int, ...]
    origins: tuple[Origin, ...]


def row_map(skeleton: nn.Module, adapter: Adapter) -> list[HfTensor]:
    """Return where each HF tensor of a model comes from; `skeleton` is the model on device meta.

    Layer by layer, so that no more than the row numbers of one layer are in memory.  Raises
    Unservable.
    """
    found: dict[str, HfTensor] = {}
    for prefix, block in _blocks(skeleton):
        found |= _of_block(prefix, block, adapter)
    whole = adapter.to_hf(dict(skeleton.state_dict()))
    for name in sorted(whole.keys() ^ found.keys()):
        where = "of the whole model alone" if name in whole else "of one of its layers alone"
        raise Unservable(name, f"the state-dict adapter makes it {where}")
    return [found[name] for name in sorted(found)]


def native_tensors(model: nn.Module, prefix: str = "") -> dict[str, torch.Tensor]:
    """Return parameters and persistent buffers by the names that they have in checkpoints.

    Training changes buffers, too: the router's bias of a mixture of experts.  A tied tensor is
    there under each of its names.
    """
    from torchtitan.components.checkpointer.utils import canonical_fqn

    return {canonical_fqn(prefix + path): tensor for _, _, path, tensor in _held(model)}


def _blocks(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the parts of a model that are mapped one at a time, each with its prefix."""
    for name, child in model.named_children():
        if isinstance(child, nn.ModuleDict | nn.ModuleList):
            for number, layer in child.named_children():
                yield f"{name}.{number}.", layer
        else:
            yield f"{name}.", child


def _of_block(prefix: str, block: nn.Module, adapter: Adapter) -> dict[str, HfTensor]:
    shapes = {name: tuple(t.shape) for name, t in native_tensors(block, prefix).items()}
    first, starts = 0, {}
    for name, shape in shapes.items():
        starts[name] = first
        first += _rows(shape)

    def row_numbers(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        ids = torch.arange(starts[name], starts[name] + _rows(shape), dtype=torch.int32)
        return ids.view(*_leading(shape), *[1] * (len(shape) > 1)).expand(shape)

    def column_numbers(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        return torch.arange(_width(shape), dtype=torch.int32).expand(shape)

    rows = _converted(prefix, block, adapter, {n: row_numbers(n, s) for n, s in shapes.items()})
    columns = _converted(
        prefix, block, adapter, {n: column_numbers(n, s) for n, s in shapes.items()}
    )
    found = {}
    for name, numbers in rows.items():
        ids = _of_rows(name, numbers)
        _check_columns(name, columns[name])
        origins = tuple(_origins(name, _width(tuple(numbers.shape)), ids, shapes, starts))
        found[name] = HfTensor(name=name, shape=tuple(numbers.shape), origins=origins)
    return found


def _converted(
    prefix: str, block: nn.Module, adapter: Adapter, stand_ins: Tensors
) -> dict[str, torch.Tensor]:
    """Return what becomes of stand-ins for weights in a Hugging Face checkpoint."""
    with _holding(block, stand_ins, prefix):
        state = block.state_dict(prefix=prefix)
    return adapter.to_hf(dict(state))


def _of_rows(name: str, numbers: torch.Tensor) -> torch.Tensor:
    if numbers.dim() not in (1, 2):
        raise Unservable(name, f"expected 1 or 2 dimensions, found shape {list(numbers.shape)}")
    flat = numbers.reshape(-1, _width(tuple(numbers.shape)))
    if flat.stride(1) and not torch.equal(flat, flat[:, :1].expand_as(flat)):
        raise Unservable(name, "the state-dict adapter does not keep rows whole")
    return flat[:, 0].long()


def _check_columns(name: str, numbers: torch.Tensor) -> None:
    width = _width(tuple(numbers.shape))
    flat = numbers.reshape(-1, width)
    flat = flat if flat.stride(0) else flat[:1]  # all rows are one
    if not torch.equal(flat, torch.arange(width, dtype=flat.dtype).expand_as(flat)):
        raise Unservable(name, "the state-dict adapter moves columns")


def _origins(
    name: str,
    width: int,
    ids: torch.Tensor,
    shapes: Mapping[str, tuple[int, ...]],
    starts: Mapping[str, int],
) -> Iterator[Origin]:
    names = list(starts)
    bounds = torch.tensor([starts[native] for native in names])
    native_of = torch.searchsorted(bounds, ids, right=True) - 1
    for number in torch.unique(native_of).tolist():
        native = names[number]
        if _width(shapes[native]) != width:
            raise Unservable(name, f"the state-dict adapter takes some columns of {native}")
        at = (native_of == number).nonzero()[:, 0]
        yield Origin(
            native=native, native_shape=shapes[native], rows=ids[at] - starts[native], at=at
        )


@contextmanager
def _holding(model: nn.Module, stand_ins: Tensors, prefix: str) -> Iterator[None]:
    """Have a model hold other tensors for a while, under the same names."""
    from torchtitan.components.checkpointer.utils import canonical_fqn

    held = list(_held(model))
    for tensors, name, path, _ in held:
        tensors[name] = stand_ins[canonical_fqn(prefix + path)]
    try:
        yield
    finally:
        for tensors, name, _, tensor in held:
            tensors[name] = tensor


def _held(model: nn.Module) -> Iterator[tuple[dict[str, Any], str, str, torch.Tensor]]:
    """Yield what is saved of a model: the mapping that holds it, its name there, and its whole."""
    for prefix, module in model.named_modules():
        path = f"{prefix}." if prefix else ""
        for name, parameter in module._parameters.items():
            if parameter is not None:
                yield module._parameters, name, path + name, parameter
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                yield module._buffers, name, path + name, buffer


def _leading(shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape[:-1] if len(shape) > 1 else shape


def _rows(shape: tuple[int, ...]) -> int:
    return prod(_leading(shape))


def _width(shape: tuple[int, ...]) -> int:
    return shape[-1] if len(shape) > 1 else 1
