"""Two versions of the same weights in memory, as every case of the benchmark has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from skerry.codec.digest import Bytes
from skerry.codec.dtypes import DTYPES, Words
from skerry.codec.header import build_header
from skerry.codec.layout import Layout, Shard
from skerry.codec.tensors import TensorSpec
from skerry.publisher.arrays import ServedTensor

FILE = "model.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The bytes of every tensor, by name, before a step and after it."""

    layout: Layout
    old: Mapping[str, Bytes]
    new: Mapping[str, Bytes]

    @property
    def nbytes(self) -> int:
        return sum(spec.nbytes for spec in self.layout.tensors)

    def read_old(self, spec: TensorSpec) -> Bytes:
        return self.old[spec.name]

    def read_new(self, spec: TensorSpec) -> Bytes:
        return self.new[spec.name]

    def words(self) -> Iterator[tuple[TensorSpec, Words, Words]]:
        """Yield every tensor's old and new words, in its shape."""
        for spec in self.layout.tensors:
            old, new = spec.view(self.old[spec.name]), spec.view(self.new[spec.name])
            yield spec, old.reshape(spec.shape), new.reshape(spec.shape)


def served_tensors(pair: Pair, data: Mapping[str, Bytes]) -> dict[str, ServedTensor]:
    """Return one side of a pair as a publisher takes it."""
    return {
        spec.name: ServedTensor(dtype=spec.dtype, shape=spec.shape, data=data[spec.name])
        for spec in pair.layout.tensors
    }


def layout_of(tensors: Sequence[tuple[str, str, tuple[int, ...]]]) -> Layout:
    """Return the layout of one file with the given tensors (name, dtype, shape)."""
    header = build_header(FILE, tensors)
    size = len(header.raw) + sum(tensor.nbytes for tensor in header.tensors)
    return Layout(shards=(Shard(name=FILE, size=size, header=header.raw),))


def slice_of(pair: Pair, nbytes: int) -> Pair:
    """Return about `nbytes` of the weights: rows from the middle of every matrix, in proportion."""
    share = nbytes / pair.nbytes
    if share >= 1:
        return pair
    tensors = []
    old: dict[str, Bytes] = {}
    new: dict[str, Bytes] = {}
    for spec, was, now in pair.words():
        rows = max(round(spec.shape[0] * share), 1)
        first = (spec.shape[0] - rows) // 2
        tensors.append((spec.name, spec.dtype, (rows, *spec.shape[1:])))
        for source, target in ((was, old), (now, new)):
            rest = np.ascontiguousarray(source[first : first + rows])
            target[spec.name] = rest.reshape(-1).view(np.uint8)
    return Pair(layout=layout_of(tensors), old=old, new=new)


def as_file(pair: Pair, dtype: str) -> Pair:
    """Return the weights as one flat tensor of `dtype`, as a program sees the file."""
    old, new = (
        np.concatenate([data[spec.name] for spec in pair.layout.tensors])
        for data in (pair.old, pair.new)
    )
    layout = layout_of([("file", dtype, (old.size // DTYPES[dtype].word,))])
    return Pair(layout=layout, old={"file": old}, new={"file": new})
