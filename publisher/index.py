"""`*.safetensors.index.json`: which shard holds which tensor, checked both ways.

An index that is accepted names every tensor of every shard beside it exactly once, in the shard
that has it, and nothing else: a loader that follows it reads all of the weights and only them.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping, Sequence

from skerry.codec.errors import FormatError
from skerry.codec.layout import check_name
from skerry.codec.tensors import TensorSpec
from skerry.publisher.errors import IndexMismatch

INDEX_SUFFIX = ".safetensors.index.json"
SHARD_SUFFIX = ".safetensors"


def build_index(weight_map: Mapping[str, str], total_bytes: int) -> bytes:
    """Return an index in the form that the Hugging Face libraries write."""
    ordered = {name: weight_map[name] for name in sorted(weight_map, key=str.encode)}
    value = {"metadata": {"total_size": total_bytes}, "weight_map": ordered}
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def check_indexes(
    indexes: Mapping[str, bytes], shards: Sequence[str], tensors: Sequence[TensorSpec]
) -> None:
    """Check every index against the shards of its directory.

    `indexes` maps names of index files to their contents.  Raises IndexMismatch, which names the
    shard and the tensor.
    """
    holder = {tensor.name: tensor.file for tensor in tensors}
    indexed: dict[str, str] = {}
    for index, data in indexes.items():
        weight_map = _weight_map(index, data)
        _check_map(index, weight_map, set(shards), holder)
        for shard in weight_map.values():
            indexed.setdefault(shard, index)
    _check_coverage(indexes, holder, indexed)


def _check_map(
    index: str, weight_map: Mapping[str, str], shards: set[str], holder: Mapping[str, str]
) -> None:
    for tensor, shard in weight_map.items():
        if shard not in shards:
            raise IndexMismatch(
                index=index,
                shard=shard,
                tensor=tensor,
                rule=f"expected tensor {tensor} in shard {shard}, which the directory lacks",
            )
        if holder.get(tensor) != shard:
            raise IndexMismatch(
                index=index,
                shard=shard,
                tensor=tensor,
                rule=f"expected tensor {tensor} in shard {shard}, "
                f"found it in {holder.get(tensor, 'no shard')}",
            )
    named = set(weight_map.values())
    for tensor, shard in holder.items():
        if shard in named and tensor not in weight_map:
            raise IndexMismatch(
                index=index,
                shard=shard,
                tensor=tensor,
                rule=f"shard {shard} holds tensor {tensor}, which weight_map leaves out",
            )


def _check_coverage(
    indexes: Mapping[str, bytes], holder: Mapping[str, str], indexed: Mapping[str, str]
) -> None:
    """Refuse a shard beside an index that no index names: loaders differ in whether they skip it.

    A shard without tensors cannot be named by an index, and nothing is lost with it.
    """
    by_directory = {posixpath.dirname(name): name for name in indexes}
    for shard in sorted(set(holder.values()) - set(indexed)):
        index = by_directory.get(posixpath.dirname(shard))
        if index is not None:
            raise IndexMismatch(
                index=index, shard=shard, rule=f"shard {shard} lies beside it, but is not in it"
            )


def _weight_map(index: str, data: bytes) -> dict[str, str]:
    """Return the map with shard names made relative to the checkpoint's directory."""
    try:
        value = json.loads(data, object_pairs_hook=lambda pairs: _unique(index, pairs))
    except (ValueError, RecursionError) as error:
        raise IndexMismatch(index=index, rule=f"not JSON: {error}") from error
    entries = value.get("weight_map") if isinstance(value, dict) else None
    if not isinstance(entries, dict):
        raise IndexMismatch(index=index, rule="expected an object with the object weight_map")
    return {tensor: _shard_name(index, tensor, name) for tensor, name in entries.items()}


def _shard_name(index: str, tensor: str, name: object) -> str:
    try:
        checked = check_name(name if isinstance(name, str) else "")
    except FormatError as error:
        raise IndexMismatch(
            index=index,
            shard=name if isinstance(name, str) else None,
            tensor=tensor,
            rule=f"weight_map sends tensor {tensor} to {name!r:.120}: {error}",
        ) from error
    return posixpath.join(posixpath.dirname(index), checked)


def _unique(index: str, pairs: list[tuple[str, object]]) -> dict[str, object]:
    result: dict[str, object] = {}
    for key, value in pairs:
        if key in result:
            raise IndexMismatch(index=index, tensor=key, rule=f"{key!r:.120} is given twice")
        result[key] = value
    return result
