"""The tensors of one layout, and where each sits: what all its manifests share.  Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from skerry.bulletin.inspection.names import Place, place, reading_order
from skerry.codec.layout import Layout
from skerry.codec.tensors import TensorSpec

Counts = npt.NDArray[np.int64]

COUNT_MOST = 2**61  # of all elements, or bytes, of one version: sums of two stay exact


@dataclass(frozen=True, eq=False)
class TensorTable:
    """Made once for a layout; arrays have one entry for each tensor, in the order of the names."""

    layout: Layout

    @property
    def specs(self) -> Sequence[TensorSpec]:
        return self.layout.tensors

    @cached_property
    def numbers(self) -> Mapping[str, int]:
        """Where in the table each tensor is, by name."""
        return {spec.name: number for number, spec in enumerate(self.specs)}

    @cached_property
    def total_words(self) -> int:
        return sum(spec.words for spec in self.specs)

    @cached_property
    def words(self) -> Counts:
        """Elements of each tensor, shape [tensors]."""
        return np.array([spec.words for spec in self.specs], np.int64)

    @cached_property
    def wheres(self) -> Sequence[Place]:
        """Where each tensor sits."""
        return [place(spec.name) for spec in self.specs]

    @cached_property
    def places(self) -> Sequence[Place]:
        """All that there are, in the order of a model's own."""
        return sorted(set(self.wheres), key=reading_order)

    @cached_property
    def _place_numbers(self) -> npt.NDArray[np.int32]:
        numbers = {where: number for number, where in enumerate(self.places)}
        return np.array([numbers[where] for where in self.wheres], np.int32)

    @cached_property
    def tensors_of(self) -> Counts:
        """Tensors in each place, shape [places]."""
        return self.by_place(np.ones(len(self.specs), np.int64))

    @cached_property
    def words_of(self) -> Counts:
        """Elements in each place, shape [places]."""
        return self.by_place(self.words)

    def by_place(self, counts: Counts) -> Counts:
        """Add up what there is of each tensor, by place, shape [places]."""
        sums = np.zeros(len(self.places), np.int64)
        np.add.at(sums, self._place_numbers, counts)
        return sums
