"""Where a tensor lies, and which of its words a version changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from skerry.codec.digest import Bytes, Digest
from skerry.codec.dtypes import DTYPES, DType, Words

Positions = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """One tensor of a checkpoint: `nbytes` bytes at `offset`, from the start of `file`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: str
    offset: int
    nbytes: int

    @property
    def type(self) -> DType:
        return DTYPES[self.dtype]

    @property
    def words(self) -> int:
        """How many words the tensor has."""
        return self.nbytes // self.type.word

    def view(self, data: Bytes) -> Words:
        """Return the tensor's bytes, shape [nbytes], as words, shape [words], without a copy."""
        return data.view(self.type.numpy)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorChanges:
    """The words of one tensor that differ between two versions.

    `positions` are flat word indices, strictly ascending, shape [n]; `old` and `new` are the bits
    before and after, shape [n], in the tensor's word type.  `leaves` are the digests of the leaves
    that hold a change, as decoding found them, by leaf number; empty where nobody hashed them.
    They say nothing about what was written since.
    """

    spec: TensorSpec
    positions: Positions
    old: Words
    new: Words
    leaves: Mapping[int, Digest] = field(default_factory=dict)


Read = Callable[[TensorSpec], Bytes]  # a tensor's bytes, shape [nbytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorStat:
    """How much of one tensor changed: `changed` of its `words`, in `nbytes` bytes of the patch."""

    name: str
    changed: int
    words: int
    nbytes: int
