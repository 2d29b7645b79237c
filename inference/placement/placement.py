"""What one process of an engine holds of a checkpoint, and where: boxes, and what was proved.

Nothing is assumed of a parameter: it counts as in place only while its bits equal the checkpoint's
through the boxes, all of them, and nobody is known to read a copy instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import torch

from skerry.codec.tensors import TensorSpec
from skerry.inference.placement.box import Box
from skerry.inference.placement.checkpoint import MappedCheckpoint
from skerry.inference.placement.dry_run import Recording
from skerry.inference.placement.permutation import Permutation
from skerry.inference.placement.words import storage_words

Kind = Literal["direct", "permuted", "derived"]
Tensors = Mapping[str, torch.Tensor]


@dataclass(kw_only=True)
class Placement:
    """The boxes of one process, by tensor.

    `derived` says of each parameter that is not in place why, `permutations` in which order some
    are.
    """

    recording: Recording
    permutations: Mapping[str, Permutation] = field(default_factory=dict)
    derived: dict[str, str] = field(default_factory=dict)

    @property
    def specs(self) -> Mapping[str, TensorSpec]:
        return self.recording.specs

    def boxes(self, tensor: str) -> Sequence[Box]:
        return self._by_tensor.get(tensor, ())

    def kinds(self) -> dict[Kind, int]:
        """Count the parameters of each kind."""
        counts: dict[Kind, int] = {"direct": 0, "permuted": 0, "derived": len(self.derived)}
        for parameter in self.parameters - self.derived.keys():
            counts["permuted" if parameter in self.permutations else "direct"] += 1
        return counts

    @property
    def parameters(self) -> set[str]:
        """Every parameter that the checkpoint feeds."""
        return set(self.recording.sources)

    def prove(
        self, parameters: Tensors, checkpoint: MappedCheckpoint, shadowed: Mapping[str, str]
    ) -> None:
        """Compare every parameter with `checkpoint`, which they were just loaded from.

        `shadowed` says of parameters why the engine does not read them, whatever bits they hold.
        """
        self.derived = dict(self.recording.computed)
        for name, problem in self.differences(parameters, checkpoint):
            self.derived.setdefault(name, problem)
        for name in self.parameters & shadowed.keys():
            self.derived[name] = shadowed[name]

    def differences(
        self, parameters: Tensors, checkpoint: MappedCheckpoint
    ) -> Iterator[tuple[str, str]]:
        """Yield each parameter whose bits are not the checkpoint's, through the boxes, and why."""
        found: set[str] = set()
        for tensor in self._by_tensor:
            words = checkpoint.words(tensor)
            for box in self.boxes(tensor):
                if box.parameter in found:
                    continue
                problem = self._compare(box, words, parameters.get(box.parameter))
                if problem is not None:
                    found.add(box.parameter)
                    yield box.parameter, problem

    def in_place(self, tensor: str) -> list[Box]:
        """Return the boxes of `tensor` whose parameters can be patched where they are."""
        return [box for box in self.boxes(tensor) if box.parameter not in self.derived]

    def module(self, tensor: str) -> set[str]:
        """Return the modules with a derived parameter that `tensor` is a source of."""
        return {module_of(name) for name in self._fed_by.get(tensor, ()) if name in self.derived}

    def sources(self, modules: set[str]) -> set[str]:
        """Return the tensors that the parameters of `modules` are made from, all of them."""
        return {
            tensor
            for name, tensors in self.recording.sources.items()
            if module_of(name) in modules
            for tensor in tensors
        }

    def words(self, box: Box, parameters: Tensors) -> torch.Tensor:
        """Return the parameter's words that are in the box, in its shape: a view or a copy."""
        flat = storage_words(parameters[box.parameter])
        permutation = self.permutations.get(box.parameter)
        if permutation is None:
            return torch.as_strided(flat, box.shape, box.steps, box.at)
        return flat[self.stored(box, box_words(box))]

    def put(self, box: Box, parameters: Tensors, words: torch.Tensor) -> None:
        """Store words in the box's shape where it says."""
        flat = storage_words(parameters[box.parameter])
        if box.parameter in self.permutations:
            flat[self.stored(box, box_words(box))] = words.to(flat.device)
        else:
            torch.as_strided(flat, box.shape, box.steps, box.at).copy_(words)

    def stored(self, box: Box, where: torch.Tensor) -> torch.Tensor:
        """Return where words of the box's parameter are that loaders put to `where`."""
        permutation = self.permutations.get(box.parameter)
        return where if permutation is None else permutation.apply(where)

    def _compare(self, box: Box, words: torch.Tensor, parameter: torch.Tensor | None) -> str | None:
        if parameter is None or parameter.is_meta or not parameter.numel():
            return "the engine keeps no such parameter after loading"
        if parameter.element_size() != words.element_size():
            return f"it is kept as {parameter.dtype}"
        if box.end >= storage_words(parameter).numel():
            return f"it is kept in {tuple(parameter.shape)} words, which are fewer"
        expected = torch.as_strided(words, box.shape, box.strides, box.start)
        if torch.equal(self.words(box, {box.parameter: parameter}).cpu(), expected):
            return None
        return "its bits are not the checkpoint's"

    @cached_property
    def _by_tensor(self) -> dict[str, list[Box]]:
        boxes: dict[str, list[Box]] = {}
        for box in self.recording.boxes:
            boxes.setdefault(box.tensor, []).append(box)
        return boxes

    @cached_property
    def _fed_by(self) -> dict[str, set[str]]:
        fed: dict[str, set[str]] = {}
        for name, tensors in self.recording.sources.items():
            for tensor in tensors:
                fed.setdefault(tensor, set()).add(name)
        return fed


def module_of(parameter: str) -> str:
    """Return the module that owns a parameter: what a loader makes anew as a whole."""
    return parameter.rpartition(".")[0]


def box_words(box: Box) -> torch.Tensor:
    """Return the word of the parameter's storage for each element of the box, in its shape."""
    where = torch.full(box.shape, box.at, dtype=torch.int64)
    for axis, (size, step) in enumerate(zip(box.shape, box.steps, strict=True)):
        shape = [1] * len(box.shape)
        shape[axis] = size
        where += (torch.arange(size) * step).view(shape)
    return where
