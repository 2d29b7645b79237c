"""The header of a safetensors file: parsed strictly, kept byte for byte.

A file is `u64 length`, `length` bytes of JSON, then the data region.  The header's bytes (the
eight, the JSON and its padding) are part of a version and never written anew from parsed form.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from skerry.codec.dtypes import DTYPES
from skerry.codec.errors import FormatError, LimitExceeded
from skerry.codec.names import check_tensor_name
from skerry.codec.strict_json import as_int, as_list, as_object, as_text, parse_json
from skerry.codec.tensors import TensorSpec

MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors library itself
MAX_TENSORS = 1_000_000
MAX_DIMENSIONS = 64
_MAX_U63 = 2**63 - 1
_ALIGNMENT = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardHeader:
    """One shard's header: its bytes, and the tensors in the order of their data."""

    raw: bytes
    tensors: tuple[TensorSpec, ...]
    metadata: Mapping[str, str]


def header_size(prefix: bytes, file_size: int) -> int:
    """Return the size in bytes of the header, the eight of its length included.

    `prefix` is the first eight bytes of a file of `file_size` bytes.  Raises FormatError or
    LimitExceeded, so that a caller never reads more than the limit.
    """
    if len(prefix) < 8:
        raise FormatError(f"a shard starts with 8 bytes of header length, found {len(prefix)}")
    (length,) = struct.unpack("<Q", prefix[:8])
    if length > MAX_HEADER_BYTES:
        raise LimitExceeded(f"header of {length} bytes, the limit is {MAX_HEADER_BYTES}")
    if 8 + length > file_size:
        raise FormatError(f"header of {length} bytes in a file of {file_size} bytes")
    return 8 + int(length)


def parse_header(file: str, raw: bytes, file_size: int) -> ShardHeader:
    """Parse the header bytes of shard `file`.

    Checks what the safetensors library checks and more: data offsets tile the data region without
    a gap, sizes match shapes, names and dtypes are known.  Raises FormatError.
    """
    size = header_size(raw[:8], file_size)
    if len(raw) != size:
        raise FormatError(f"{file}: header of {size} bytes expected, {len(raw)} given")
    text = raw[8:]
    if not text.startswith(b"{"):
        raise FormatError(f"{file}: header does not start with an opening brace")
    entries = dict(as_object(parse_json(text, file), file))
    metadata = _metadata(entries.pop("__metadata__", None), file)
    if len(entries) > MAX_TENSORS:
        raise LimitExceeded(f"{file}: {len(entries)} tensors, the limit is {MAX_TENSORS}")
    tensors = [_tensor(file, name, entry, size) for name, entry in entries.items()]
    # A stable sort: zero-size tensors that share an offset keep the header's order.
    tensors.sort(key=lambda t: (t.offset, t.offset + t.nbytes))
    end = size
    for tensor in tensors:
        if tensor.offset != end:
            raise FormatError(
                f"{file}: {tensor.name} starts at {tensor.offset}, expected {end}: "
                "data must follow each other without gap or overlap"
            )
        end += tensor.nbytes
    if end != file_size:
        raise FormatError(f"{file}: tensors end at byte {end}, the file at {file_size}")
    return ShardHeader(raw=bytes(raw), tensors=tuple(tensors), metadata=metadata)


def build_header(
    file: str,
    tensors: Sequence[tuple[str, str, Sequence[int]]],
    metadata: Mapping[str, str] | None = None,
) -> ShardHeader:
    """Return the header of a new shard that holds `tensors` (name, dtype, shape) in that order."""
    entries: dict[str, object] = {}
    if metadata:
        entries["__metadata__"] = dict(metadata)
    end = 0
    for name, dtype, shape in tensors:
        nbytes = tensor_bytes(name, dtype, shape)
        entries[name] = {
            "dtype": dtype,
            "shape": list(shape),
            "data_offsets": [end, end + nbytes],
        }
        end += nbytes
    if len(entries) != len(tensors) + bool(metadata):
        raise FormatError(f"{file}: a tensor name is given twice")
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    raw = struct.pack("<Q", len(text)) + text
    return parse_header(file, raw, len(raw) + end)


def tensor_bytes(name: str, dtype: str, shape: Sequence[int]) -> int:
    """Return the size in bytes of a tensor.  Raises FormatError if it has none."""
    if dtype not in DTYPES:
        raise FormatError(f"{name}: dtype {dtype!r:.40}, known are {', '.join(DTYPES)}")
    if len(shape) > MAX_DIMENSIONS:
        raise LimitExceeded(f"{name}: {len(shape)} dimensions, the limit is {MAX_DIMENSIONS}")
    bits = DTYPES[dtype].bits
    if 0 in shape:
        return 0
    for dimension in shape:
        bits *= dimension
        if bits > 8 * _MAX_U63:
            raise LimitExceeded(f"{name}: shape {list(shape)} overflows 2^63 bytes")
    if bits % 8:
        raise FormatError(f"{name}: {bits} bits of {dtype} are no whole number of bytes")
    return bits // 8


def _metadata(value: object, file: str) -> Mapping[str, str]:
    if value is None:
        return {}
    return {
        key: as_text(item, f"{file}: __metadata__ {key}")
        for key, item in as_object(value, f"{file}: __metadata__").items()
    }


def _tensor(file: str, name: str, value: object, data_start: int) -> TensorSpec:
    check_tensor_name(name)
    where = f"{file}: {name}"
    entry = as_object(value, where)
    if set(entry) != {"dtype", "shape", "data_offsets"}:
        raise FormatError(f"{where}: expected dtype, shape and data_offsets, found {sorted(entry)}")
    dtype = as_text(entry["dtype"], where)
    shape = tuple(as_int(n, where, 0, _MAX_U63) for n in as_list(entry["shape"], where))
    offsets = [as_int(n, where, 0, _MAX_U63) for n in as_list(entry["data_offsets"], where)]
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        raise FormatError(f"{where}: data_offsets {offsets} are no range")
    expected = tensor_bytes(where, dtype, shape)
    if offsets[1] - offsets[0] != expected:
        raise FormatError(
            f"{where}: {dtype} {list(shape)} has {expected} bytes, data_offsets span "
            f"{offsets[1] - offsets[0]}"
        )
    return TensorSpec(
        name=name,
        dtype=dtype,
        shape=shape,
        file=file,
        offset=data_start + offsets[0],
        nbytes=expected,
    )
