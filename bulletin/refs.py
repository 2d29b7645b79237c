"""What records say about objects: references, and full versions.

Records are downloaded for every version, so references are lists without field names, and a pack's
digest, which its key ends in, is not written twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from skerry.bulletin import keys
from skerry.codec.digest import Digest, parse_digest
from skerry.codec.errors import FormatError
from skerry.codec.names import check_name
from skerry.codec.strict_json import as_int, as_list, as_object, as_text, check_fields

MAX_INT = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectRef:
    """One immutable object: where it is, and what it must be."""

    key: str
    size: int
    digest: Digest


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRef:
    """One file of a full version."""

    name: str
    size: int
    digest: Digest

    def to_json(self) -> list[object]:
        return [self.name, self.size, self.digest]


@dataclass(frozen=True, slots=True, kw_only=True)
class Full:
    """A full version: the directory `prefix` with `files`, in the order of their names."""

    prefix: str
    files: tuple[FileRef, ...]

    @property
    def nbytes(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def objects(self) -> tuple[ObjectRef, ...]:
        return tuple(self.ref(file) for file in self.files)

    def ref(self, file: FileRef) -> ObjectRef:
        """Return where one of the files is stored."""
        return ObjectRef(
            key=keys.full_file(self.prefix, file.name), size=file.size, digest=file.digest
        )

    def to_json(self) -> dict[str, object]:
        return {"prefix": self.prefix, "files": [file.to_json() for file in self.files]}


def packs_to_json(packs: tuple[ObjectRef, ...]) -> list[object]:
    """Return what `parse_packs` reads: key and size of each."""
    return [[pack.key, pack.size] for pack in packs]


def parse_packs(value: object, where: str) -> tuple[ObjectRef, ...]:
    """Parse references to packs.  Raises FormatError and InvalidKey."""
    packs = tuple(_pack(item, where) for item in as_list(value, where))
    if len({pack.key for pack in packs}) != len(packs):
        raise FormatError(f"{where}: a pack is named twice")
    return packs


def parse_full(value: object, where: str) -> Full:
    """Parse a full version.  Raises FormatError and InvalidKey."""
    fields = as_object(value, where)
    check_fields(fields, where, "prefix", "files")
    prefix = as_text(fields["prefix"], where)
    keys.parse_full_prefix(prefix)
    files = tuple(_file(item, where) for item in as_list(fields["files"], where))
    names = [file.name for file in files]
    if not files or names != sorted(set(names)):
        raise FormatError(f"{where}: expected files in the order of their names, each once")
    for name in names:
        keys.full_file(prefix, name)
    return Full(prefix=prefix, files=files)


def _pack(value: object, where: str) -> ObjectRef:
    key, size = _items(value, where, 2)
    key = as_text(key, where)
    return ObjectRef(key=key, size=as_int(size, where, 1, MAX_INT), digest=keys.parse_pack(key)[1])


def _file(value: object, where: str) -> FileRef:
    name, size, digest = _items(value, where, 3)
    return FileRef(
        name=check_name(as_text(name, where)),
        size=as_int(size, where, 0, MAX_INT),
        digest=parse_digest(digest),
    )


def _items(value: object, where: str, count: int) -> Sequence[object]:
    items = as_list(value, where)
    if len(items) != count:
        raise FormatError(f"{where}: expected entries of {count} items, found {len(items)}")
    return items
