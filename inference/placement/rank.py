"""The weights of one process of an engine: which version they are, and how they become another.

A rank is `at` a version, or at none: before its first `load`, and when a failure left its weights
unknown.  Every method leaves it at the old version or at the new one, or says EngineBroken.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from skerry.codec.digest import Digest, leaf_digests, tensor_digest, version_digest
from skerry.codec.tensors import TensorSpec
from skerry.inference.engine import EngineBroken, InstallFailed, WeightUpdate
from skerry.inference.placement.box import Box
from skerry.inference.placement.checkpoint import MappedCheckpoint, difference
from skerry.inference.placement.coverage import uncovered
from skerry.inference.placement.placement import Placement, module_of
from skerry.inference.placement.readback import ReadBack, read_back
from skerry.inference.placement.staged import Reload, Staged, stage

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageReport:
    """What staging found: `words` to scatter, parameters to make anew and why, tensors not read."""

    words: int
    derived: Mapping[str, str]
    unread: tuple[str, ...]
    seconds: float


class Rank:
    """See the module's docstring.  Not for several threads."""

    def __init__(
        self,
        placement: Placement,
        parameters: Callable[[], Mapping[str, torch.Tensor]],
        reload: Reload,
        *,
        alone: bool,
    ) -> None:
        """`reload` has the model's own loaders make modules anew, from all their tensors.

        `alone` says that no other rank holds a part of the model, so that all must be found here.
        """
        self.placement = placement
        self.version: int | None = None
        self._parameters = parameters
        self._reload_modules = reload
        self._alone = alone
        self._mirror: Path | None = None
        self._staged: tuple[WeightUpdate, Staged] | None = None
        self._installed: tuple[WeightUpdate, Staged] | None = None

    @torch.inference_mode()
    def load(self, directory: Path, version: int) -> None:
        """Bring every parameter to the bits of a checkpoint of the same structure.

        Raises EngineBroken: the weights are then unknown.
        """
        began, self.version, self._staged, self._installed = time.perf_counter(), None, None, None
        try:
            checkpoint = MappedCheckpoint.open(directory)
        except Exception as error:  # of many kinds, and all mean that there is no such checkpoint
            raise EngineBroken(f"version {version}: {directory}: {error}") from error
        problem = difference(self.placement.specs, checkpoint.specs)
        if problem is not None:
            raise EngineBroken(
                f"version {version}: {problem}: restart the engine on a directory of its structure"
            )
        placement, parameters = self.placement, self._parameters()
        for name in placement.specs:
            words = checkpoint.words(name)
            for box in placement.in_place(name):
                placement.put(
                    box, parameters, torch.as_strided(words, box.shape, box.strides, box.start)
                )
        modules = {module_of(name) for name in placement.derived}
        if modules:
            tensors = sorted(placement.sources(modules))
            self._reload([(name, checkpoint.copy(name)) for name in tensors])
        for name, why in placement.differences(self._parameters(), checkpoint):
            if name not in placement.derived:
                raise EngineBroken(f"version {version}: {name}: {why} after loading it")
        self.version, self._mirror = version, directory
        logger.info(
            "loaded version=%d directory=%s modules_anew=%d seconds=%.3f",
            version, directory, len(modules), time.perf_counter() - began,
        )  # fmt: skip

    @torch.inference_mode()
    def stage(self, update: WeightUpdate) -> StageReport:
        """Prepare `update` while tokens are made.  Raises InstallFailed."""
        began = time.perf_counter()
        self._staged = None
        if update.base != self.version:
            raise InstallFailed(f"update expects base {update.base}, found {self.version}")
        mirror = None if self._mirror is None else MappedCheckpoint.open(self._mirror)
        staged = stage(self.placement, self._parameters(), update.changes, mirror)
        if self._alone:
            for change in update.changes:
                missed = uncovered(change.spec.words, self.placement.boxes(change.spec.name))
                anew = self.placement.module(change.spec.name)
                if missed and not anew and change.spec.name not in staged.unread:
                    raise InstallFailed(
                        f"{change.spec.name}: {missed} words are nowhere in the engine"
                    )
        self._staged = (update, staged)
        self._installed = None
        for name in staged.unread if self._alone else ():  # of several, another rank may
            logger.warning("version %d: nothing here reads %s", update.version, name)
        return StageReport(
            words=staged.words,
            derived=staged.derived,
            unread=staged.unread,
            seconds=time.perf_counter() - began,
        )

    @torch.inference_mode()
    def install(self, version: int) -> float:
        """Write what is staged, read a sample back; return the seconds of the writing alone.

        Raises InstallFailed when the old bits are in place, EngineBroken otherwise.
        """
        if self._staged is None or self._staged[0].version != version:
            raise InstallFailed(f"version {version} is not staged")
        update, staged = self._staged
        if self.version != update.base:
            raise InstallFailed(f"update expects base {update.base}, found {self.version}")
        began = time.perf_counter()
        self.version = None
        try:
            staged.install(self._reload)
        except InstallFailed:
            self.version = update.base
            raise
        seconds = time.perf_counter() - began
        if not staged.holds():
            staged.undo(self._reload)
            self.version = update.base
            raise InstallFailed(f"version {version}: words read back are not those written")
        self.version = version
        self._staged, self._installed = None, (update, staged)
        return seconds

    @torch.inference_mode()
    def undo(self, version: int) -> None:
        """Take the install of `version` back; nothing to do if it is not installed.

        Raises EngineBroken.
        """
        self._staged = None
        if self.version != version or self._installed is None:
            return
        update, staged = self._installed
        self._installed, self.version = None, None
        staged.undo(self._reload)
        self.version = update.base

    def settle(self) -> None:
        """Let go of what the last install replaced; it cannot be undone any more."""
        self._installed = None

    @torch.inference_mode()
    def read_back(self) -> ReadBack:
        """Hash the weights through the map.  Raises EngineBroken if there are none."""
        if self.version is None or self._mirror is None:
            raise EngineBroken("the weights are no version")
        return read_back(self.placement, self._parameters(), MappedCheckpoint.open(self._mirror))

    @property
    def reads_mirror(self) -> bool:
        """Whether some tensor is not whole in place here: the mirror is read for it."""
        placement = self.placement
        return any(
            uncovered(spec.words, placement.in_place(name))
            for name, spec in placement.specs.items()
        )

    def held(self) -> dict[str, list[Box]]:
        """Return the boxes that this rank has of every tensor, also through derived modules."""
        placement = self.placement
        return {
            name: [*placement.boxes(name), *([_whole(spec)] if placement.module(name) else [])]
            for name, spec in placement.specs.items()
        }

    def mirror_digest(self) -> Digest:
        """Hash the mirror that the weights were loaded from, or patched along with."""
        if self._mirror is None:
            raise EngineBroken("the weights are no version")
        mirror = MappedCheckpoint.open(self._mirror)
        digests = {
            name: tensor_digest(name, s.dtype, s.shape, leaf_digests(mirror.data(name)))
            for name, s in mirror.specs.items()
        }
        return version_digest(digests)

    @torch.inference_mode()
    def compare(self, directory: Path) -> dict[str, str]:
        """Return the parameters that do not hold the bits of a checkpoint, and why."""
        checkpoint = MappedCheckpoint.open(directory)
        found = dict(self.placement.differences(self._parameters(), checkpoint))
        return {n: why for n, why in found.items() if n not in self.placement.derived}

    def _reload(self, tensors: Sequence[tuple[str, torch.Tensor]]) -> None:
        try:
            self._reload_modules(tensors)
        except Exception as error:  # the model may be without any parameters now
            self.version = None
            raise EngineBroken(f"modules could not be made anew: {error!r}") from error


def _whole(spec: TensorSpec) -> Box:
    """Return a box of all of a tensor, for modules that are made from it in ways unknown."""
    return Box(
        tensor=spec.name,
        start=0,
        strides=(1,),
        shape=(spec.words,),
        parameter="",
        at=0,
        steps=(1,),
    )
