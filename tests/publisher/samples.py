"""Checkpoint directories made from a seed: every dtype, odd headers, side files, shards."""

from __future__ import annotations

import json
import random
import struct
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from skerry.codec.dtypes import DTYPES
from skerry.codec.header import tensor_bytes
from skerry.publisher.index import build_index

SHAPES: tuple[tuple[int, ...], ...] = ((), (0,), (1,), (7,), (16, 3), (0, 5), (2, 3, 4), (300,))


@dataclass(frozen=True, kw_only=True)
class SampleTensor:
    dtype: str
    shape: tuple[int, ...]
    data: bytes


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One checkpoint: tensors by shard, in file order, and everything around them."""

    shards: dict[str, dict[str, SampleTensor]]
    metadata: dict[str, str] | None = None
    padding: int = 0
    side_files: dict[str, bytes] = field(default_factory=dict)

    def files(self) -> dict[str, bytes]:
        """Return every file's bytes."""
        files = dict(self.side_files)
        for name, tensors in self.shards.items():
            files[name] = shard_bytes(tensors, self.metadata, self.padding)
        if len(self.shards) > 1:
            weight_map = {t: shard for shard, tensors in self.shards.items() for t in tensors}
            files["model.safetensors.index.json"] = build_index(weight_map, 1)
        return files

    def write(self, directory: Path) -> Path:
        for name, data in self.files().items():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return directory


def shard_bytes(
    tensors: dict[str, SampleTensor], metadata: dict[str, str] | None = None, padding: int = 0
) -> bytes:
    """Return a shard whose header lists the tensors backwards, with blanks in it and after it."""
    entries: dict[str, object] = {}
    end = 0
    for name, tensor in tensors.items():
        entries[name] = {
            "shape": list(tensor.shape),
            "dtype": tensor.dtype,
            "data_offsets": [end, end + len(tensor.data)],
        }
        end += len(tensor.data)
    ordered = dict(reversed(entries.items()))
    if metadata is not None:
        ordered["__metadata__"] = metadata
    text = json.dumps(ordered, separators=(", ", " : ")).encode() + b" " * padding
    return struct.pack("<Q", len(text)) + text + b"".join(t.data for t in tensors.values())


def make(seed: int, *, sharded: bool) -> Sample:
    """Return a checkpoint with a few tensors of random dtypes and shapes."""
    rng = random.Random(seed)
    names = ["model.safetensors"]
    if sharded:
        names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    shards: dict[str, dict[str, SampleTensor]] = {name: {} for name in names}
    for number in range(rng.randint(2, 9)):
        dtype = rng.choice(list(DTYPES))
        shape = rng.choice(SHAPES)
        if DTYPES[dtype].bits < 8 and 0 not in shape:
            shape = (*shape, 4)  # a whole number of bytes
        size = tensor_bytes("sample", dtype, shape)
        shard = names[number % len(names)]
        data = rng.randbytes(size)
        shards[shard][f"layer.{number}.wéight"] = SampleTensor(dtype=dtype, shape=shape, data=data)
    return Sample(
        shards=shards,
        metadata=rng.choice([None, {}, {"format": "pt", "note": "x" * rng.randint(0, 9)}]),
        padding=rng.randint(0, 9),
        side_files={
            "config.json": b'{"hidden": 1.5}\n',
            "tokenizer/vocab.txt": rng.randbytes(rng.randint(0, 200)),
            "empty": b"",
        },
    )


def edit_weights(sample: Sample, seed: int, share: float = 0.1) -> Sample:
    """Return the sample with some bytes of some tensors changed."""
    rng = np.random.default_rng(seed)
    shards = {}
    for shard, tensors in sample.shards.items():
        shards[shard] = dict(tensors)
        for name, tensor in tensors.items():
            data = np.frombuffer(tensor.data, np.uint8).copy()
            hit = rng.random(data.size) < share
            data[hit] = rng.integers(0, 256, int(hit.sum()), dtype=np.uint8)
            shards[shard][name] = replace(tensor, data=data.tobytes())
    return replace(sample, shards=shards)


def edit_side_files(sample: Sample, seed: int) -> Sample:
    """Return the sample with one side file changed, one added, one gone."""
    side_files = dict(sample.side_files)
    side_files["config.json"] = f'{{"hidden": {seed}}}'.encode()
    side_files[f"extra/deep/{seed}.txt"] = b"new\x00"
    side_files.pop("empty", None)
    return replace(sample, side_files=side_files)


def edit_structure(sample: Sample, seed: int) -> Sample:
    """Return the sample with a tensor added, removed, renamed, reshaped or retyped."""
    rng = random.Random(seed)
    shard = rng.choice(list(sample.shards))
    tensors = dict(sample.shards[shard])
    match rng.randrange(4):
        case 0:
            tensors[f"added {seed}"] = SampleTensor(dtype="BF16", shape=(3,), data=rng.randbytes(6))
        case 1 if tensors:
            tensors.pop(next(iter(tensors)))
        case 2 if tensors:
            name = next(iter(tensors))
            tensors = {(f"renamed {seed}" if n == name else n): t for n, t in tensors.items()}
        case _:
            tensors[f"grown {seed}"] = SampleTensor(dtype="U8", shape=(1, 4), data=rng.randbytes(4))
    return replace(sample, shards={**sample.shards, shard: tensors})


def read_tree(directory: Path) -> dict[str, bytes]:
    """Return every file below a directory."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }
