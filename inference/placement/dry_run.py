"""The map from checkpoint to parameters, by a dry run of the model's own loaders.

The loaders get tensors without storage.  Slicing, fusing, sharding and routing to experts only make
views of them, so that each copy that would be made is a strided box on both sides; it is noted and
not made.  What is no plain copy (a cast, a sum, a value that is looked at) is noted as well: the
parameter is then derived.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from skerry.codec.tensors import TensorSpec
from skerry.inference.placement.box import Box
from skerry.inference.placement.words import TORCH_DTYPES

Weights = Iterable[tuple[str, torch.Tensor]]

_aten = torch.ops.aten
_FILLS = (_aten.fill_.Scalar, _aten.fill_.Tensor, _aten.zero_.default)
_CASTS = (_aten._to_copy.default,)


@dataclass(slots=True, kw_only=True)
class Recording:
    """What a dry run found.

    `computed` names parameters that some copy fed with something else than a box, and why;
    `sources` all tensors that a parameter is made from, through boxes or not.
    """

    specs: Mapping[str, TensorSpec]
    boxes: list[Box] = field(default_factory=list)
    computed: dict[str, str] = field(default_factory=dict)
    sources: dict[str, set[str]] = field(default_factory=dict)


def record(
    parameters: Mapping[str, torch.Tensor],
    specs: Sequence[TensorSpec],
    load: Callable[[Weights], object],
) -> Recording:
    """Run `load` over tensors like `specs` and return where each would have gone.

    `parameters` are all tensors that it may write to, by name; nothing is written to them.  Raises
    whatever `load` raises over tensors that have no values.
    """
    recorder = _Recorder(parameters, specs)
    with torch.no_grad(), recorder:
        load(recorder.weights())
    return recorder.recording


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, parameters: Mapping[str, torch.Tensor], specs: Sequence[TensorSpec]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.recording = Recording(specs={spec.name: spec for spec in specs})
        self._parameters = {
            tensor.untyped_storage().data_ptr(): name
            for name, tensor in parameters.items()
            if tensor.numel() and not tensor.is_meta
        }
        self._tensors: dict[int, str] = {}
        self._origins: dict[int, set[str]] = {}  # of whatever was computed, by storage
        self._kept: list[torch.Tensor] = []  # or another tensor could get a storage's identity

    def weights(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, spec in self.recording.specs.items():
            if spec.dtype not in TORCH_DTYPES:
                raise TypeError(f"{name}: torch has no dtype for {spec.dtype}")
            tensor = torch.empty(spec.shape, dtype=TORCH_DTYPES[spec.dtype], device="meta")
            self._kept.append(tensor)
            self._tensors[_storage(tensor)] = name
            self._origins[_storage(tensor)] = {name}
            yield name, tensor

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is _aten.copy_.default:
            target, source = args[0], args[1]
            name = self._parameter(target)
            if name is not None:
                self._note(name, target, source)
                return target
        elif func in _FILLS and self._parameter(args[0]) is not None:
            return args[0]  # rows of padding: the loaders write the same when they run in earnest
        elif func in _CASTS and args[0].is_meta:
            dtype = kwargs.get("dtype")
            if dtype is None or dtype == args[0].dtype:  # another device only: the same elements
                return args[0].view(args[0].shape)
        result = func(*args, **kwargs)
        if func._schema.is_mutable and args and isinstance(args[0], torch.Tensor):
            self._tensors.pop(_storage(args[0]), None)  # a loader changed it: no copy any more
        self._follow((args, kwargs), result)
        return result

    def _follow(self, given: object, result: object) -> None:
        """Note what a computed tensor was computed from, also one that is written in place."""
        origins = {name for tensor in _metas(given) for name in self._origin(tensor)}
        for tensor in _metas(result) if origins else ():
            if _storage(tensor) not in self._origins:
                self._kept.append(tensor)
            if _storage(tensor) not in self._tensors:
                self._origins.setdefault(_storage(tensor), set()).update(origins)

    def _origin(self, tensor: torch.Tensor) -> set[str]:
        return self._origins.get(_storage(tensor), set()) if tensor.is_meta else set()

    def _parameter(self, tensor: torch.Tensor) -> str | None:
        if tensor.is_meta or not tensor.numel():
            return None
        return self._parameters.get(tensor.untyped_storage().data_ptr())

    def _note(self, name: str, target: torch.Tensor, source: torch.Tensor) -> None:
        found = self._tensors.get(_storage(source)) if source.is_meta else None
        origins = self._origin(source)
        self.recording.sources.setdefault(name, set()).update(origins)
        if found is None:
            problem = f"it is computed from {', '.join(sorted(origins)) or 'nothing'}"
        elif source.dtype != target.dtype:
            problem = f"{found} is cast from {source.dtype} to {target.dtype}"
        elif source.numel() != target.numel():
            problem = f"{found} is stored more than once"
        else:
            source = source.expand(target.shape) if source.dim() <= target.dim() else source
            if source.shape != target.shape:
                source = source.reshape(target.shape)
            box = Box(
                tensor=found,
                start=int(source.storage_offset()),
                strides=tuple(source.stride()),
                shape=tuple(source.shape),
                parameter=name,
                at=int(target.storage_offset()),
                steps=tuple(target.stride()),
            )
            if box.is_injective and _storage(source) in self._tensors:
                self.recording.boxes.append(box)
                return
            problem = f"{found} is stored in a form that is no box"
        self.recording.computed.setdefault(name, problem)


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _metas(value: object) -> list[torch.Tensor]:
    leaves, _ = tree_flatten(value)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.is_meta]
