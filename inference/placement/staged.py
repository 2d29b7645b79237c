"""One update, located in the parameters of one process before the engine pauses.

What is in place is scattered through integer views, with the old bits at hand; what is derived is
made anew by the model's own loaders, and what nothing here reads is left out, by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from skerry.codec.dtypes import Words
from skerry.codec.tensors import TensorChanges
from skerry.inference.engine import InstallFailed
from skerry.inference.engines.scatter import Located, check_old, replace, writer
from skerry.inference.placement.checkpoint import MappedCheckpoint
from skerry.inference.placement.placement import Placement, Tensors, module_of
from skerry.inference.placement.words import TORCH_DTYPES, WORDS, storage_words

Reload = Callable[[Sequence[tuple[str, torch.Tensor]]], None]

_SAMPLED = 65_536  # words that are read back after each install


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """`sources` holds the new tensors that derived modules are made from, `before` the old ones."""

    located: tuple[Located, ...]
    write: Callable[[], None]  # the new bits of `located`
    sources: tuple[tuple[str, torch.Tensor], ...]
    before: tuple[tuple[str, torch.Tensor], ...]
    derived: Mapping[str, str]  # parameters that are made anew, and why
    unread: tuple[str, ...]  # tensors that no parameter of this process is fed by

    @property
    def words(self) -> int:
        return sum(changes.positions.numel() for changes in self.located)

    def install(self, reload: Reload) -> None:
        """Write all of it, or nothing.  Raises InstallFailed or EngineBroken."""
        if self.sources:
            # First, because only this can fail for reasons of its own; the rest has an undo.
            reload(self.sources)
        try:
            replace(self.located, prepared=self.write)
        except InstallFailed:
            if self.before:
                reload(self.before)
            raise

    def undo(self, reload: Reload) -> None:
        """Put everything back.  Raises EngineBroken."""
        if self.before:
            reload(self.before)
        replace([changes.reversed() for changes in self.located])

    def holds(self, *, sample: int = _SAMPLED) -> bool:
        """Read words back, spread over all that were written, and compare them."""
        every = max(1, self.words // sample)
        return all(torch.equal(c.words[c.positions[::every]], c.new[::every]) for c in self.located)


def stage(
    placement: Placement,
    parameters: Tensors,
    changes: Sequence[TensorChanges],
    mirror: MappedCheckpoint | None,
) -> Staged:
    """Locate `changes`, and check that every word is where the map says and has its old bits.

    `mirror` is a checkpoint of the old version or of the new one, or of a state between them; only
    derived modules need it.  Raises InstallFailed.
    """
    located: list[Located] = []
    modules: set[str] = set()
    unread: list[str] = []
    for change in changes:
        spec = placement.specs.get(change.spec.name)
        if spec is None or (spec.dtype, spec.shape) != (change.spec.dtype, change.spec.shape):
            found = "none" if spec is None else f"{spec.dtype} {list(spec.shape)}"
            raise InstallFailed(
                f"{change.spec.name}: the update has {change.spec.dtype} "
                f"{list(change.spec.shape)}, the engine {found}"
            )
        located += _locate(placement, parameters, change)
        touched = placement.module(change.spec.name)
        modules |= touched
        if not touched and not placement.boxes(change.spec.name):
            unread.append(change.spec.name)
    check_old(located)
    sources, before = _sources(placement, modules, changes, mirror)
    return Staged(
        located=tuple(located),
        write=writer(located),
        sources=sources,
        before=before,
        derived={
            name: why for name, why in placement.derived.items() if module_of(name) in modules
        },
        unread=tuple(unread),
    )


def _locate(placement: Placement, parameters: Tensors, change: TensorChanges) -> list[Located]:
    boxes = placement.in_place(change.spec.name)
    if not boxes:
        return []
    positions = torch.from_numpy(change.positions)
    old, new = (_bits(change.old), _bits(change.new))
    located = []
    for box in boxes:
        words = storage_words(parameters[box.parameter])
        chosen, where = box.find(positions)
        if where.numel():
            where = placement.stored(box, where).to(words.device, torch.int64)
            located.append(
                Located(
                    name=change.spec.name,
                    words=words,
                    positions=where,
                    old=old[chosen].to(words.device),
                    new=new[chosen].to(words.device),
                )
            )
    return located


def _sources(
    placement: Placement,
    modules: set[str],
    changes: Sequence[TensorChanges],
    mirror: MappedCheckpoint | None,
) -> tuple[tuple[tuple[str, torch.Tensor], ...], tuple[tuple[str, torch.Tensor], ...]]:
    """Return the tensors that `modules` are made from, after the update and before it."""
    if not modules:
        return (), ()
    if mirror is None:
        reasons = {placement.derived[n] for n in placement.derived}
        raise InstallFailed(
            f"{len(modules)} modules must be made anew ({'; '.join(sorted(reasons))}), "
            "and there is no mirror to make them from"
        )
    by_name = {change.spec.name: change for change in changes}
    after: list[tuple[str, torch.Tensor]] = []
    before: list[tuple[str, torch.Tensor]] = []
    for name in sorted(placement.sources(modules)):
        change, spec = by_name.get(name), placement.specs[name]
        words = mirror.words(name).clone()
        for pairs, bits in ((after, "new"), (before, "old")):
            own = words.clone()
            if change is not None:
                own[torch.from_numpy(change.positions)] = _bits(getattr(change, bits))
            pairs.append((name, own.view(TORCH_DTYPES[spec.dtype]).view(spec.shape)))
    return tuple(after), tuple(before)


def _bits(words: Words) -> torch.Tensor:
    size = words.dtype.itemsize
    return torch.from_numpy(words.view(f"<i{size}" if size > 1 else np.uint8)).view(WORDS[size])
