"""Small checkpoint directories for engines: written, read, hashed and compared word by word."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from skerry.codec.digest import Bytes, Digest, leaf_digests, tensor_digest, version_digest
from skerry.codec.header import build_header, header_size, parse_header
from skerry.codec.tensors import TensorChanges, TensorSpec
from skerry.inference.engine import WeightUpdate


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a checkpoint: where it lies, and its bytes."""

    spec: TensorSpec
    data: Bytes


Tensors = Mapping[str, Tensor]


def write_checkpoint(
    directory: Path, tensors: Mapping[str, tuple[str, tuple[int, ...], bytes]]
) -> Path:
    """Write one shard that holds `tensors`: dtype, shape and bytes by name."""
    shapes = [(name, dtype, shape) for name, (dtype, shape, _) in tensors.items()]
    header = build_header("model.safetensors", shapes)
    directory.mkdir(parents=True, exist_ok=True)
    data = b"".join(data for _, _, data in tensors.values())
    (directory / "model.safetensors").write_bytes(header.raw + data)
    return directory


def read_checkpoint(directory: Path) -> Tensors:
    """Read all shards of a directory.  Raises FormatError or OSError."""
    tensors: dict[str, Tensor] = {}
    for path in sorted(directory.glob("*.safetensors")):
        data = path.read_bytes()
        header = parse_header(path.name, data[: header_size(data[:8], len(data))], len(data))
        for spec in header.tensors:
            piece = np.frombuffer(data, np.uint8, spec.nbytes, spec.offset).copy()
            tensors[spec.name] = Tensor(spec, piece)
    return tensors


def digest_of(tensors: Tensors) -> Digest:
    """Return the digest of a version."""
    return version_digest(
        {
            name: tensor_digest(name, t.spec.dtype, t.spec.shape, leaf_digests(t.data))
            for name, t in tensors.items()
        }
    )


def update_between(base: int, old: Tensors, version: int, new: Tensors) -> WeightUpdate:
    """Return what leads from `old` to `new`, which have the same structure."""
    assert old.keys() == new.keys()
    changes = []
    for name, before in old.items():
        old_words, new_words = before.spec.view(before.data), new[name].spec.view(new[name].data)
        positions = np.flatnonzero(old_words != new_words).astype(np.int64)
        if positions.size:
            changes.append(
                TensorChanges(
                    spec=before.spec,
                    positions=positions,
                    old=old_words[positions],
                    new=new_words[positions],
                )
            )
    return WeightUpdate(base=base, version=version, digest=digest_of(new), changes=tuple(changes))
