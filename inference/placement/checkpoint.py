"""A checkpoint directory's tensors, mapped: read where they are compared, copied or hashed."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from skerry.codec.digest import Bytes
from skerry.codec.errors import FormatError
from skerry.codec.header import header_size, parse_header
from skerry.codec.tensors import TensorSpec
from skerry.inference.models.checkpoint import shard_names
from skerry.inference.placement.words import TORCH_DTYPES, WORDS


@dataclass(frozen=True, slots=True)
class MappedCheckpoint:
    """Specs by name, and the bytes of the shards.  The directory must not change meanwhile."""

    specs: Mapping[str, TensorSpec]
    shards: Mapping[str, Bytes]

    @classmethod
    def open(cls, directory: Path) -> MappedCheckpoint:
        """Raises OSError, FormatError, or UnsupportedModel for an index that does not fit."""
        specs: dict[str, TensorSpec] = {}
        shards: dict[str, Bytes] = {}
        for name in shard_names(directory):
            shards[name] = data = _map(directory / name)
            raw = data[: header_size(data[:8].tobytes(), data.size)].tobytes()
            for spec in parse_header(name, raw, data.size).tensors:
                if spec.name in specs:
                    raise FormatError(f"{spec.name} is in {specs[spec.name].file} and in {name}")
                specs[spec.name] = spec
        return cls(specs, shards)

    def data(self, name: str) -> Bytes:
        """Return a tensor's bytes, mapped."""
        spec = self.specs[name]
        return self.shards[spec.file][spec.offset : spec.offset + spec.nbytes]

    def words(self, name: str) -> torch.Tensor:
        """Return a tensor's words as integers, [words], mapped where it can be."""
        data, size = self.data(name), self.specs[name].type.word
        if data.size == 0:
            return torch.empty(0, dtype=WORDS[size])
        if data.ctypes.data % size:  # a header of odd length: safetensors allows it
            data = data.copy()
        return torch.from_numpy(data.view(f"<i{size}" if size > 1 else np.uint8))

    def copy(self, name: str) -> torch.Tensor:
        """Return a tensor in memory of its own, in its dtype and shape."""
        spec = self.specs[name]
        return self.words(name).clone().view(TORCH_DTYPES[spec.dtype]).view(spec.shape)


def difference(known: Mapping[str, TensorSpec], found: Mapping[str, TensorSpec]) -> str | None:
    """Say in one line how two checkpoints differ in structure; None if they do not."""
    for name in sorted(known.keys() | found.keys()):
        before, after = known.get(name), found.get(name)
        if before is None or after is None:
            return f"tensor {name} is {'new' if before is None else 'gone'}"
        if (before.dtype, before.shape) != (after.dtype, after.shape):
            return (
                f"tensor {name} was {before.dtype} {list(before.shape)}, "
                f"is {after.dtype} {list(after.shape)}"
            )
    return None


def _map(path: Path) -> Bytes:
    with path.open("rb") as file:
        if not path.stat().st_size:
            raise FormatError(f"{path.name} is empty")
        # A private mapping: torch wants memory that could be written, and nothing here writes.
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    return np.frombuffer(mapped, np.uint8)
