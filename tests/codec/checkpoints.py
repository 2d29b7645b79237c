"""Checkpoints in memory, for tests: a layout and the bytes of every tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from skerry.codec.digest import LEAF_BYTES, Bytes, Digest, leaf_digests
from skerry.codec.dtypes import DTYPES
from skerry.codec.header import build_header
from skerry.codec.layout import Layout, Shard
from skerry.codec.tensors import TensorChanges, TensorSpec
from skerry.codec.weights import WeightsDigest, digest_weights

Tensor = tuple[str, str, tuple[int, ...]]


@dataclass(frozen=True)
class Weights:
    layout: Layout
    data: Mapping[str, Bytes]

    def read(self, spec: TensorSpec) -> Bytes:
        return self.data[spec.name]

    def digest(self) -> WeightsDigest:
        return digest_weights(self.layout, self.read)

    def replace(self, **data: Bytes) -> Weights:
        return Weights(self.layout, {**self.data, **data})


def layout_of(tensors: Sequence[Tensor]) -> Layout:
    header = build_header("model.safetensors", tensors)
    size = len(header.raw) + sum(t.nbytes for t in header.tensors)
    return Layout(shards=(Shard(name="model.safetensors", size=size, header=header.raw),))


def weights_of(tensors: Mapping[str, tuple[str, Bytes]]) -> Weights:
    """Return weights of flat tensors: `{name: (dtype, bytes)}`."""
    table: list[Tensor] = []
    for name, (dtype, data) in tensors.items():
        table.append((name, dtype, (data.size * 8 // DTYPES[dtype].bits,)))
    return Weights(layout_of(table), {name: data for name, (_, data) in tensors.items()})


def patched_leaves(base: Bytes, changes: TensorChanges) -> dict[int, Digest]:
    """Return the digests that the leaves which changed have afterwards."""
    patched = base.copy()
    changes.spec.view(patched)[changes.positions] = changes.new
    digests = leaf_digests(patched)
    touched = changes.positions * changes.spec.type.word // LEAF_BYTES
    return {int(leaf): digests[leaf] for leaf in np.unique(touched)}


def mutate(rng: np.random.Generator, old: Bytes, dtype: str, density: float, near: bool) -> Bytes:
    """Change about `density` of the words: to a neighbour when `near`, else to any bits."""
    words = old.view(DTYPES[dtype].numpy).copy()
    chosen = np.flatnonzero(rng.random(words.size) < density)
    if near:
        words[chosen] += rng.integers(1, 4, chosen.size).astype(words.dtype)
    else:
        words[chosen] = rng.integers(0, 256, (chosen.size, words.itemsize), np.uint8).view(
            words.dtype
        )[:, 0]
    return words.view(np.uint8)


def random_bytes(rng: np.random.Generator, dtype: str, words: int, bell: bool) -> Bytes:
    """Return a tensor's bytes: any bits, or weights around zero where the dtype is a float."""
    kind = DTYPES[dtype]
    if bell and kind.name == "BF16":
        wide = (rng.standard_normal(words) * 0.02).astype(np.float32).view(np.uint32)
        return (wide >> 16).astype("<u2").view(np.uint8)
    return rng.integers(0, 256, words * kind.word, np.uint8)


@st.composite
def pairs(draw: st.DrawFn, chunk_words: int) -> tuple[Weights, Weights]:
    """Two versions of a few tensors, of any dtype, 0 to 3 chunks long, 0 to 100 % changed."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    old: dict[str, tuple[str, Bytes]] = {}
    new: dict[str, Bytes] = {}
    for i in range(draw(st.integers(1, 3))):
        dtype = draw(st.sampled_from(sorted(DTYPES)))
        words = draw(st.integers(0, 3 * chunk_words))
        words -= words % 4  # a whole number of bytes of the narrow types, too
        words = words if DTYPES[dtype].bits != 6 else words - words % 3
        density = draw(st.sampled_from([0.0, 0.001, 0.01, 0.1, 0.5, 1.0]))
        data = random_bytes(rng, dtype, words, draw(st.booleans()))
        old[f"t{i}"] = (dtype, data)
        new[f"t{i}"] = mutate(rng, data, dtype, density, draw(st.booleans()))
    base = weights_of(old)
    return base, base.replace(**new)
