"""Tensors of a plain Hugging Face safetensors directory, read into memory of one's own.

Nothing is mapped: an engine writes into its weights, and a mapped file could change under it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from skerry.codec.header import header_size, parse_header
from skerry.codec.tensors import TensorSpec
from skerry.inference.models.config import UnsupportedModel

INDEX = "model.safetensors.index.json"
_MAX_INDEX_BYTES = 100_000_000

FLOATS: Mapping[str, torch.dtype] = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
}
DTYPE_NAMES: Mapping[torch.dtype, str] = {dtype: name for name, dtype in FLOATS.items()}


def read_checkpoint(directory: Path) -> dict[str, torch.Tensor]:
    """Return every tensor of the directory, by name, in its own dtype.

    Raises OSError, FormatError for bytes that are no safetensors, UnsupportedModel for a dtype that
    no model here computes with and for an index that does not fit its shards.
    """
    tensors: dict[str, torch.Tensor] = {}
    for name in shard_names(directory):
        for tensor_name, tensor in _read_shard(directory / name).items():
            if tensor_name in tensors:
                raise UnsupportedModel(f"{name}: {tensor_name} is in another shard as well")
            tensors[tensor_name] = tensor
    return tensors


def shard_names(directory: Path) -> list[str]:
    """Return the file names of the directory's shards, sorted."""
    found = sorted(path.name for path in directory.glob("*.safetensors"))
    index = directory / INDEX
    if index.is_file():
        if index.stat().st_size > _MAX_INDEX_BYTES:
            raise UnsupportedModel(f"{INDEX} exceeds {_MAX_INDEX_BYTES} bytes")
        try:
            listed = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UnsupportedModel(f"{INDEX} has no weight_map: {error}") from error
        if listed != found:
            raise UnsupportedModel(f"{INDEX} names {listed}, the directory has {found}")
    if not found:
        raise FileNotFoundError(f"no *.safetensors in {directory}")
    return found


def _read_shard(path: Path) -> dict[str, torch.Tensor]:
    file_size = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(8)
        raw = prefix + file.read(header_size(prefix, file_size) - 8)
        header = parse_header(path.name, raw, file_size)
        tensors = {}
        for spec in header.tensors:  # in file order, so that the reads are sequential
            data = np.empty(spec.nbytes, np.uint8)
            if file.readinto(data.data) != spec.nbytes:
                raise OSError(f"{path.name} ended inside {spec.name}")
            tensors[spec.name] = _tensor(spec, data)
    return tensors


def _tensor(spec: TensorSpec, data: np.typing.NDArray[np.uint8]) -> torch.Tensor:
    if spec.dtype not in FLOATS:
        raise UnsupportedModel(
            f"{spec.name}: expected one of {', '.join(FLOATS)}, found {spec.dtype}"
        )
    return torch.from_numpy(data).view(FLOATS[spec.dtype]).view(spec.shape)
