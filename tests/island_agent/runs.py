"""Small runs for tests: random checkpoints of several dtypes, published by the real writer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from skerry.bulletin.log import BulletinReader, BulletinWriter
from skerry.bulletin.manifest import Manifest
from skerry.bulletin.records import Full, ObjectRef
from skerry.bulletin.signing import Signer
from skerry.bulletin.store import ObjectStore
from skerry.bulletin.stores import MemoryStore
from skerry.codec.digest import Bytes, Digest, digest_bytes
from skerry.codec.encode import encode_pack
from skerry.codec.header import build_header, header_size, parse_header
from skerry.codec.layout import Layout, Shard, SideFile, same_structure
from skerry.codec.tensors import TensorSpec, TensorStat
from skerry.codec.weights import digest_weights
from skerry.island_agent.files import tree_files

Tensors = Mapping[str, tuple[str, tuple[int, ...], Bytes]]


@dataclass(frozen=True)
class Snapshot:
    """One version as files in memory, the oracle of every test."""

    files: Mapping[str, bytes]

    @cached_property
    def layout(self) -> Layout:
        shards, sides = [], []
        for name in sorted(self.files):
            data = self.files[name]
            if name.endswith(".safetensors"):
                raw = data[: header_size(data[:8], len(data))]
                shards.append(Shard(name=name, size=len(data), header=raw))
            else:
                sides.append(SideFile(name=name, size=len(data), digest=digest_bytes(data)))
        return Layout(shards=tuple(shards), side_files=tuple(sides))

    def read(self, spec: TensorSpec) -> Bytes:
        return np.frombuffer(self.files[spec.file], np.uint8)[
            spec.offset : spec.offset + spec.nbytes
        ]

    @cached_property
    def weights(self) -> Digest:
        return digest_weights(self.layout, self.read).version()

    def with_words(self, name: str, words: Mapping[int, int]) -> Snapshot:
        """Return a copy in which single words of one tensor differ."""
        spec = next(t for t in self.layout.tensors if t.name == name)
        data = bytearray(self.files[spec.file])
        view = spec.view(np.frombuffer(data, np.uint8)[spec.offset : spec.offset + spec.nbytes])
        for position, value in words.items():
            view[position] = value
        return Snapshot({**self.files, spec.file: bytes(data)})

    def with_file(self, name: str, content: bytes | None) -> Snapshot:
        files = {**self.files, name: content}
        return Snapshot({n: c for n, c in files.items() if c is not None})

    def mutated(self, seed: int, density: float = 0.01) -> Snapshot:
        """Return a copy in which about `density` of every tensor's words differ."""
        rng = np.random.default_rng(seed)
        files = {name: bytearray(data) for name, data in self.files.items()}
        for spec in self.layout.tensors:
            stored = np.frombuffer(files[spec.file], np.uint8)
            words = spec.view(stored[spec.offset : spec.offset + spec.nbytes])
            chosen = np.flatnonzero(rng.random(words.size) < density)
            words[chosen] ^= rng.integers(1, 4, chosen.size).astype(words.dtype)
        return Snapshot({name: bytes(data) for name, data in files.items()})

    def write(self, directory: Path) -> None:
        for name, data in self.files.items():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


def shard(name: str, tensors: Tensors, metadata: Mapping[str, str] | None = None) -> bytes:
    header = build_header(name, [(n, d, s) for n, (d, s, _) in tensors.items()], metadata)
    parsed = parse_header(name, header.raw, len(header.raw) + sum(t.nbytes for t in header.tensors))
    return header.raw + b"".join(tensors[t.name][2].tobytes() for t in parsed.tensors)


def random_snapshot(seed: int = 0, words: int = 4000) -> Snapshot:
    """Three shards of BF16, F32, F16, I64, and FP8 blocks with their scales, plus side files."""
    rng = np.random.default_rng(seed)

    def floats(dtype: str, *shape: int) -> tuple[str, tuple[int, ...], Bytes]:
        values = (rng.standard_normal(shape) * 0.02).astype(np.float32)
        if dtype == "BF16":
            bits = (values.view(np.uint32) >> 16).astype("<u2")
            return dtype, shape, bits.reshape(-1).view(np.uint8)
        if dtype == "F16":
            return dtype, shape, values.astype(np.float16).reshape(-1).view(np.uint8)
        return dtype, shape, values.reshape(-1).view(np.uint8)

    def integers(dtype: str, size: int, *shape: int) -> tuple[str, tuple[int, ...], Bytes]:
        count = int(np.prod(shape)) * size
        return dtype, shape, rng.integers(0, 256, count, np.uint8)

    first: Tensors = {
        "embed": floats("BF16", words // 20, 20),
        "empty": ("F8_E4M3", (0,), np.zeros(0, np.uint8)),
        "router.bias": floats("F32", 33),
    }
    second: Tensors = {
        "block.weight": integers("F8_E4M3", 1, 64, 64),
        "block.weight_scale_inv": integers("F8_E8M0", 1, 8, 8),
        "ids": integers("I64", 8, 17),
    }
    third: Tensors = {"norm": floats("F16", 257), "head": floats("BF16", words // 10, 10)}
    shards = {
        "model-00001-of-00003.safetensors": shard("a", first, {"format": "pt"}),
        "model-00002-of-00003.safetensors": shard("b", second),
        "model-00003-of-00003.safetensors": shard("c", third, {"step": "00000000"}),
    }
    index = {
        "weight_map": {
            name: file
            for file, names in zip(shards, (first, second, third), strict=True)
            for name in names
        }
    }
    return Snapshot(
        {
            **shards,
            "model.safetensors.index.json": json.dumps(index).encode(),
            "config.json": b'{"model_type": "test"}',
            "tokenizer/vocab.txt": b"a\nb\n",
        }
    )


@dataclass
class Run:
    """A run under construction; `versions[n]` is what version n must be, byte for byte."""

    store: ObjectStore = field(default_factory=MemoryStore)
    versions: list[Snapshot] = field(default_factory=list)
    lists_leaves: bool = False  # in manifests of full versions, as a publisher does
    signer: Signer | None = None

    def __post_init__(self) -> None:
        self.writer = BulletinWriter.open(self.store, signer=self.signer, writer="test")

    def reader(self) -> BulletinReader:
        return BulletinReader(self.store)

    def publish(
        self,
        new: Snapshot,
        *,
        parent: int | None = -1,
        full: bool | None = None,
        patch: bool = True,
        result: Digest | None = None,
    ) -> int:
        """Commit a version: the first one and changes of structure as a full, others as a patch.

        `result` lets the record promise other weights than the patch gives.
        """
        if parent == -1:
            parent = len(self.versions) - 1 if self.versions else None
        old = None if parent is None else self.versions[parent]
        patch = patch and old is not None and same_structure(old.layout, new.layout)
        full = not patch if full is None else full
        packs: tuple[ObjectRef, ...] = ()
        stats: tuple[TensorStat, ...] = ()
        leaves: Mapping[str, Mapping[int, Digest]] = {}
        base: Digest | None = None
        changed: int | None = None
        if patch:
            assert old is not None
            encoded = encode_pack(
                old.layout,
                old.read,
                new.read,
                base=old.weights,
                files={
                    side.name: new.files[side.name]
                    for side in new.layout.side_files
                    if old.files.get(side.name) != new.files[side.name]
                },
            )
            base, leaves, changed = old.weights, encoded.leaves, encoded.changed
            packs = (self.writer.put_pack(encoded.data),)
            stats = encoded.stats
        if full and self.lists_leaves:
            weights = digest_weights(new.layout, new.read)
            pairs = zip(weights.tensors, weights.leaves, strict=True)
            leaves = {spec.name: dict(enumerate(found)) for spec, found in pairs if found}
        layout = self.writer.put_layout(new.layout)
        self.writer.commit(
            parent=parent,
            step=len(self.versions) * 10,
            layout=layout,
            manifest=self.writer.put_manifest(
                Manifest(layout=layout, tensors=stats, leaves=leaves)
            ),
            base=base,
            result=result or new.weights,
            packs=packs,
            full=self.put_full(new) if full else None,
            elements=new.layout.words,
            changed=changed,
        )
        self.versions.append(new)
        return len(self.versions) - 1

    def put_full(self, new: Snapshot) -> Full:
        return self.writer.put_full((name, [data]) for name, data in sorted(new.files.items()))

    def extend(self, count: int, density: float = 0.01) -> None:
        """Publish `count` more patches."""
        for _ in range(count):
            seed = len(self.versions)
            self.publish(self.versions[-1].mutated(seed, density))


def make_run(
    patches: int = 0,
    *,
    store: ObjectStore | None = None,
    words: int = 4000,
    signer: Signer | None = None,
) -> Run:
    run = Run(store or MemoryStore(), signer=signer)
    run.publish(random_snapshot(words=words))
    run.extend(patches)
    return run


def assert_is(directory: Path, version: Snapshot) -> None:
    """The directory is this version: every file's bytes, and no file more."""
    assert sorted(tree_files(directory)) == sorted(version.files)
    for name, data in version.files.items():
        assert (directory / name).read_bytes() == data, name
