"""Everything about a version but its weights: files, header bytes, tensor table, side files.

A layout and a weights digest together fix a directory byte for byte.  All versions of one structure
share one layout object.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

from skerry.codec.compress import compress, decompress
from skerry.codec.digest import Digest, digest_bytes, parse_digest
from skerry.codec.errors import FormatError, LimitExceeded
from skerry.codec.header import MAX_TENSORS, parse_header
from skerry.codec.names import check_name
from skerry.codec.strict_json import (
    as_int,
    as_list,
    as_object,
    as_text,
    canonical,
    check_fields,
    parse_json,
)
from skerry.codec.tensors import TensorSpec

__all__ = ["Layout", "Shard", "SideFile", "check_name", "describe_difference", "same_structure"]

MAX_LAYOUT_BYTES = 256 * 1024 * 1024  # unpacked
MAX_FILES = 100_000
_MAX_U63 = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One safetensors file: `size` bytes, of which `header` are the first."""

    name: str
    size: int
    header: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SideFile:
    """Any other file of a version: index, configuration, tokenizer."""

    name: str
    size: int
    digest: Digest


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The files of a version.  `Layout.from_bytes(l.to_bytes()) == l` for every layout.

    `recipe` says how served weights were made from trained ones; it is carried, not interpreted.
    Raises FormatError when shards and side files contradict each other or the rules.
    """

    shards: tuple[Shard, ...]
    side_files: tuple[SideFile, ...] = ()
    recipe: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = [check_name(name) for name, _ in self.files()]
        if len(names) > MAX_FILES:
            raise LimitExceeded(f"{len(names)} files, the limit is {MAX_FILES}")
        taken = set(names)
        if len(taken) != len(names):
            raise FormatError("a file is named twice")
        for name in names:
            parts = name.split("/")
            for depth in range(1, len(parts)):
                if "/".join(parts[:depth]) in taken:
                    raise FormatError(f"{'/'.join(parts[:depth])} is both a file and a directory")
        for files in (self.shards, self.side_files):
            if [f.name for f in files] != sorted(f.name for f in files):
                raise FormatError("files are not in the order of their names")
        _ = self.tensors

    @cached_property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """All tensors of all shards, in the order of their names' UTF-8 bytes."""
        found = [
            tensor
            for shard in self.shards
            for tensor in parse_header(shard.name, shard.header, shard.size).tensors
        ]
        if len(found) > MAX_TENSORS:
            raise LimitExceeded(f"{len(found)} tensors, the limit is {MAX_TENSORS}")
        found.sort(key=lambda tensor: tensor.name.encode())
        for before, after in pairwise(found):
            if before.name == after.name:
                raise FormatError(f"{before.name} is in {before.file} and again in {after.file}")
        return tuple(found)

    @property
    def words(self) -> int:
        """How many words all tensors have together."""
        return sum(tensor.words for tensor in self.tensors)

    @property
    def nbytes(self) -> int:
        """The size in bytes of all files together."""
        return sum(size for _, size in self.files())

    def files(self) -> Iterator[tuple[str, int]]:
        """Yield every file's name and size in bytes: shards, then side files."""
        yield from ((shard.name, shard.size) for shard in self.shards)
        yield from ((side.name, side.size) for side in self.side_files)

    def to_bytes(self) -> bytes:
        """Return the stored form: canonical JSON, zstd."""
        return compress(
            canonical(
                {
                    "format": 1,
                    "shards": [
                        {
                            "name": shard.name,
                            "size": shard.size,
                            "header": base64.b64encode(shard.header).decode(),
                        }
                        for shard in self.shards
                    ],
                    "tensors": [
                        [t.name, t.dtype, list(t.shape), t.file, t.offset] for t in self.tensors
                    ],
                    "side_files": [[s.name, s.size, s.digest] for s in self.side_files],
                    "recipe": dict(self.recipe),
                }
            )
        )

    def digest(self) -> Digest:
        """Return the digest of the stored form."""
        return digest_bytes(self.to_bytes())

    @classmethod
    def from_bytes(cls, data: bytes) -> Layout:
        """Parse a stored layout.  Raises FormatError."""
        value = as_object(parse_json(decompress(data, MAX_LAYOUT_BYTES), "layout"), "layout")
        check_fields(value, "layout", "format", "shards", "tensors", "side_files", "recipe")
        as_int(value["format"], "layout format", 1, 1)
        layout = cls(
            shards=tuple(map(_shard, as_list(value["shards"], "shards"))),
            side_files=tuple(map(_side_file, as_list(value["side_files"], "side_files"))),
            recipe=as_object(value["recipe"], "recipe"),
        )
        table = [[t.name, t.dtype, list(t.shape), t.file, t.offset] for t in layout.tensors]
        if table != value["tensors"]:
            raise FormatError("the layout's tensor table contradicts its shards' headers")
        return layout


def same_structure(a: Layout, b: Layout) -> bool:
    """Say whether a patch can lead from `a` to `b`.

    It can when every shard keeps its name, size and header size, and every tensor its place.  The
    bytes of headers (`__metadata__`) and the side files may differ: a pack carries them whole.
    """
    return [(s.name, s.size, len(s.header)) for s in a.shards] == [
        (s.name, s.size, len(s.header)) for s in b.shards
    ] and a.tensors == b.tensors


def describe_difference(a: Layout, b: Layout) -> str:
    """Say in one line how the structure of `b` differs from that of `a`; empty if it does not."""
    if same_structure(a, b):
        return ""
    old, new = ({t.name: t for t in side.tensors} for side in (a, b))
    for name in sorted(old.keys() | new.keys()):
        if name not in new:
            return f"tensor {name} is gone"
        if name not in old:
            return f"tensor {name} is new"
        was, now = old[name], new[name]
        if (was.dtype, was.shape) != (now.dtype, now.shape):
            return (
                f"tensor {name} was {was.dtype} {list(was.shape)}, is {now.dtype} {list(now.shape)}"
            )
    for name in sorted(old):
        was, now = old[name], new[name]
        if (was.file, was.offset) != (now.file, now.offset):
            return f"tensor {name} moved from {was.file}:{was.offset} to {now.file}:{now.offset}"
    return "shards differ in name, size or header size"


def _shard(value: object) -> Shard:
    entry = as_object(value, "shard")
    check_fields(entry, "shard", "name", "size", "header")
    try:
        header = base64.b64decode(as_text(entry["header"], "header"), validate=True)
    except (binascii.Error, ValueError) as error:
        raise FormatError("a shard's header is not base64") from error
    return Shard(
        name=check_name(as_text(entry["name"], "shard name")),
        size=as_int(entry["size"], "shard size", 8, _MAX_U63),
        header=header,
    )


def _side_file(value: object) -> SideFile:
    entry = as_list(value, "side file")
    if len(entry) != 3:
        raise FormatError("a side file is [name, size, digest]")
    return SideFile(
        name=check_name(as_text(entry[0], "side file name")),
        size=as_int(entry[1], "side file size", 0, _MAX_U63),
        digest=parse_digest(entry[2]),
    )
