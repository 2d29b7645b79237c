"""Manifests: what a version changed, tensor by tensor.  For inspection; followers need none.

Law: `Manifest.from_bytes(m.to_bytes()) == m` for every valid manifest.  Stored as canonical JSON in
one zstd frame.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from skerry.bulletin.errors import RecordInvalid
from skerry.bulletin.refs import MAX_INT
from skerry.codec.compress import compress, decompress
from skerry.codec.digest import Digest, parse_digest
from skerry.codec.errors import FormatError
from skerry.codec.names import check_name, check_tensor_name
from skerry.codec.strict_json import (
    as_int,
    as_list,
    as_object,
    as_text,
    canonical,
    check_fields,
    parse_json,
)
from skerry.codec.tensors import TensorStat

MANIFEST_LIMIT_BYTES = 64 * 1024 * 1024  # unpacked: a million tensors with short names


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What one version changed.

    `side_files` are the names of those that changed; `tensors` are in the order of their names;
    `leaves` are the result digests of the leaves that changed, or of all; `recipe` is the layout's.
    """

    layout: Digest
    side_files: tuple[str, ...] = ()
    tensors: tuple[TensorStat, ...] = ()
    leaves: Mapping[str, Mapping[int, Digest]] = field(default_factory=lambda: MappingProxyType({}))
    recipe: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))

    def to_bytes(self) -> bytes:
        """Return the stored form."""
        return compress(
            canonical(
                {
                    "format": 1,
                    "layout": self.layout,
                    "side_files": list(self.side_files),
                    "tensors": [[t.name, t.changed, t.words, t.nbytes] for t in self.tensors],
                    "leaves": {
                        name: [[index, digest] for index, digest in sorted(changed.items())]
                        for name, changed in self.leaves.items()
                    },
                    "recipe": dict(self.recipe),
                }
            )
        )

    @classmethod
    def from_bytes(cls, data: bytes, *, what: str = "manifest") -> Manifest:
        """Parse a stored manifest.  Raises RecordInvalid, which names `what`."""
        try:
            text = decompress(data, MANIFEST_LIMIT_BYTES)
            value = parse_json(text, "manifest")
            if canonical(value) != text:
                raise FormatError("not in canonical form")
            return cls._from_json(value)
        except FormatError as error:
            raise RecordInvalid(what, error.rule) from error
        except UnicodeEncodeError as error:
            raise RecordInvalid(what, "holds a lone surrogate") from error

    @classmethod
    def _from_json(cls, value: object) -> Manifest:
        fields = as_object(value, "manifest")
        check_fields(
            fields, "manifest", "format", "layout", "side_files", "tensors", "leaves", "recipe"
        )
        as_int(fields["format"], "format", 1, 1)
        side_files = tuple(
            check_name(as_text(item, "side_files"))
            for item in as_list(fields["side_files"], "side_files")
        )
        tensors = tuple(_stat(item) for item in as_list(fields["tensors"], "tensors"))
        for names in (list(side_files), [tensor.name for tensor in tensors]):
            if names != sorted(set(names)):
                raise FormatError("manifest: expected names in order, each once")
        return cls(
            layout=parse_digest(fields["layout"]),
            side_files=side_files,
            tensors=tensors,
            leaves={
                check_tensor_name(name): _leaves(changed)
                for name, changed in as_object(fields["leaves"], "leaves").items()
            },
            recipe=as_object(fields["recipe"], "recipe"),
        )


def _stat(value: object) -> TensorStat:
    entry = as_list(value, "tensor")
    if len(entry) != 4:
        raise FormatError(f"tensor: expected name, changed, words, bytes, found {len(entry)} items")
    words = as_int(entry[2], "words", 0, MAX_INT)
    return TensorStat(
        name=check_tensor_name(as_text(entry[0], "tensor name")),
        changed=as_int(entry[1], "changed", 0, words),
        words=words,
        nbytes=as_int(entry[3], "bytes", 0, MAX_INT),
    )


def _leaves(value: object) -> dict[int, Digest]:
    leaves: dict[int, Digest] = {}
    last = -1
    for item in as_list(value, "leaves"):
        entry = as_list(item, "leaf")
        if len(entry) != 2:
            raise FormatError(f"leaf: expected index and digest, found {len(entry)} items")
        last = as_int(entry[0], "leaf index", last + 1, MAX_INT)
        leaves[last] = parse_digest(entry[1])
    return leaves
