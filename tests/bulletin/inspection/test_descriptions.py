"""What is kept of manifests: little for each tensor, and never more than is allowed."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from dataclasses import replace

from skerry.bulletin import keys
from skerry.bulletin.inspection.cells import cells
from skerry.bulletin.inspection.descriptions import Descriptions
from skerry.bulletin.manifest import Manifest
from skerry.bulletin.records import Commit
from skerry.bulletin.stores.memory import MemoryStore
from skerry.codec.digest import digest_bytes
from skerry.codec.header import build_header
from skerry.codec.layout import Layout, Shard
from skerry.codec.tensors import TensorStat
from tests.bulletin.log_builder import LogBuilder

LAYERS, EXPERTS = 4, 128


def mixture() -> Layout:
    """Return the layout of a mixture of experts, 1,536 tensors."""
    tensors = [
        (f"model.layers.{layer}.mlp.experts.{expert}.{name}.weight", "BF16", [8, 8])
        for layer in range(LAYERS)
        for expert in range(EXPERTS)
        for name in ("gate_proj", "up_proj", "down_proj")
    ]
    header = build_header("model.safetensors", tensors)
    size = len(header.raw) + sum(tensor.nbytes for tensor in header.tensors)
    return Layout(shards=(Shard(name="model.safetensors", size=size, header=header.raw),))


def stored(store: MemoryStore, layout: Layout, versions: int) -> Iterator[Commit]:
    """Store a layout and manifests that change everything, and yield commits that name them."""
    data = layout.to_bytes()
    store.put(keys.layout(digest_bytes(data)), [data])
    commit = LogBuilder.with_versions(2).patch(parent=1, layout=digest_bytes(data))
    for version in range(versions):
        stats = (
            TensorStat(name=spec.name, changed=1 + version % spec.words, words=spec.words, nbytes=5)
            for spec in layout.tensors
        )
        described = Manifest(layout=digest_bytes(data), tensors=tuple(stats)).to_bytes()
        store.put(keys.manifest(digest_bytes(described)), [described])
        yield replace(commit, manifest=digest_bytes(described))


def test_what_is_kept_of_a_version_takes_few_bytes_for_each_tensor() -> None:
    store, layout = MemoryStore(), mixture()
    first, *others = stored(store, layout, 41)
    read = Descriptions(store)
    read.of(first)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        held = [read.of(commit) for commit in others]
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert len(held) == len(others)
    assert grown < 64 * len(layout.tensors) * len(others)


def test_all_experts_of_a_layer_are_one_cell() -> None:
    store, layout = MemoryStore(), mixture()
    [commit] = stored(store, layout, 1)
    found = cells(Descriptions(store).of(commit))
    assert [cell.tensors for cell in found.values()] == [EXPERTS] * 3 * LAYERS
    assert list(dict.fromkeys(cell.projection for cell in found.values())) == [
        "experts.gate_proj", "experts.up_proj", "experts.down_proj"
    ]  # fmt: skip
