"""The five kinds of record: what each one says, and the rules that need no log to check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from skerry.bulletin import keys
from skerry.bulletin.errors import InvalidKey
from skerry.bulletin.refs import MAX_INT, Full, ObjectRef, packs_to_json, parse_full, parse_packs
from skerry.bulletin.signing import PublicKey
from skerry.codec.digest import Digest, parse_digest
from skerry.codec.errors import FormatError
from skerry.codec.strict_json import as_int, as_list, as_object, as_text, check_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """Opens an epoch.  `key` verifies every record from this one on; None: the run is unsigned."""

    kind: ClassVar[str] = "fence"
    key: PublicKey | None

    def to_json(self) -> dict[str, object]:
        return {"key": None if self.key is None else self.key.hex}

    @classmethod
    def from_json(cls, value: object) -> Fence:
        fields = as_object(value, "fence")
        check_fields(fields, "fence", "key")
        return cls(key=None if fields["key"] is None else PublicKey.parse(fields["key"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One version: a patch against its parent (`base` is the parent's digest), a full, or both.

    A patch without packs changes nothing.  `nbytes` is what a follower downloads: the packs of the
    patch, or the files of the full when there is no patch.  `changed` is None when nobody compared.
    """

    kind: ClassVar[str] = "commit"
    version: int
    parent: int | None
    step: int
    layout: Digest
    manifest: Digest
    base: Digest | None
    result: Digest
    packs: tuple[ObjectRef, ...]
    full: Full | None
    elements: int
    changed: int | None
    nbytes: int

    def to_json(self) -> dict[str, object]:
        return {
            "version": self.version,
            "parent": self.parent,
            "step": self.step,
            "layout": self.layout,
            "manifest": self.manifest,
            "base": self.base,
            "result": self.result,
            "packs": packs_to_json(self.packs),
            "full": None if self.full is None else self.full.to_json(),
            "elements": self.elements,
            "changed": self.changed,
            "bytes": self.nbytes,
        }

    @classmethod
    def from_json(cls, value: object) -> Commit:
        fields = as_object(value, "commit")
        check_fields(
            fields, "commit", "version", "parent", "step", "layout", "manifest", "base", "result",
            "packs", "full", "elements", "changed", "bytes",
        )  # fmt: skip
        version = as_int(fields["version"], "version", 0, MAX_INT)
        elements = as_int(fields["elements"], "elements", 0, MAX_INT)
        parent, base, full, changed = (
            fields[name] for name in ("parent", "base", "full", "changed")
        )
        commit = cls(
            version=version,
            parent=None if parent is None else as_int(parent, "parent", 0, version - 1),
            step=as_int(fields["step"], "step", 0, MAX_INT),
            layout=parse_digest(fields["layout"]),
            manifest=parse_digest(fields["manifest"]),
            base=None if base is None else parse_digest(base),
            result=parse_digest(fields["result"]),
            packs=parse_packs(fields["packs"], "packs"),
            full=None if full is None else parse_full(full, "full"),
            elements=elements,
            changed=None if changed is None else as_int(changed, "changed", 0, elements),
            nbytes=as_int(fields["bytes"], "bytes", 0, MAX_INT),
        )
        commit.check()
        return commit

    def check(self) -> None:
        """Raises FormatError for a version that is none: no way there, or sizes that differ."""
        if self.base is None:
            if self.packs or self.full is None:
                raise FormatError("commit: expected a patch (base and packs), a full, or both")
        elif self.parent is None:
            raise FormatError("commit: a patch needs a parent")
        elif not self.packs and self.base != self.result:
            raise FormatError("commit: a patch without packs changes nothing, the result differs")
        expected = download_bytes(self.base, self.packs, self.full)
        if self.nbytes != expected:
            raise FormatError(f"commit: expected {expected} bytes, found {self.nbytes}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Skip:
    """Packs that lead from `base_version` straight to `version`, in either direction."""

    kind: ClassVar[str] = "skip"
    base_version: int
    version: int
    base: Digest
    result: Digest
    packs: tuple[ObjectRef, ...]

    @property
    def nbytes(self) -> int:
        return sum(pack.size for pack in self.packs)

    def to_json(self) -> dict[str, object]:
        return {
            "base_version": self.base_version,
            "version": self.version,
            "base": self.base,
            "result": self.result,
            "packs": packs_to_json(self.packs),
        }

    @classmethod
    def from_json(cls, value: object) -> Skip:
        fields = as_object(value, "skip")
        check_fields(fields, "skip", "base_version", "version", "base", "result", "packs")
        skip = cls(
            base_version=as_int(fields["base_version"], "base_version", 0, MAX_INT),
            version=as_int(fields["version"], "version", 0, MAX_INT),
            base=parse_digest(fields["base"]),
            result=parse_digest(fields["result"]),
            packs=parse_packs(fields["packs"], "packs"),
        )
        skip.check()
        return skip

    def check(self) -> None:
        """Raises FormatError for a skip that leads nowhere."""
        if self.base_version == self.version or not self.packs:
            raise FormatError("skip: expected packs between two different versions")


@dataclass(frozen=True, slots=True, kw_only=True)
class Retire:
    """Versions that are no target any more, and what may be deleted `grace_s` seconds from now.

    `keys` are packs and the prefixes of fulls.  Both are in ascending order.
    """

    kind: ClassVar[str] = "retire"
    versions: tuple[int, ...]
    keys: tuple[str, ...]
    grace_s: int

    def to_json(self) -> dict[str, object]:
        return {
            "versions": list(self.versions),
            "keys": list(self.keys),
            "grace_s": self.grace_s,
        }

    @classmethod
    def from_json(cls, value: object) -> Retire:
        fields = as_object(value, "retire")
        check_fields(fields, "retire", "versions", "keys", "grace_s")
        versions = tuple(
            as_int(item, "versions", 0, MAX_INT) for item in as_list(fields["versions"], "versions")
        )
        names = tuple(
            _collectable(as_text(item, "keys")) for item in as_list(fields["keys"], "keys")
        )
        if list(versions) != sorted(set(versions)) or list(names) != sorted(set(names)):
            raise FormatError("retire: expected versions and keys in order, each once")
        if not versions and not names:
            raise FormatError("retire: expected a version or a key")
        return cls(
            versions=versions, keys=names, grace_s=as_int(fields["grace_s"], "grace_s", 0, MAX_INT)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotate:
    """The key that verifies every later record; this one is signed by the key before it."""

    kind: ClassVar[str] = "rotate"
    key: PublicKey

    def to_json(self) -> dict[str, object]:
        return {"key": self.key.hex}

    @classmethod
    def from_json(cls, value: object) -> Rotate:
        fields = as_object(value, "rotate")
        check_fields(fields, "rotate", "key")
        return cls(key=PublicKey.parse(fields["key"]))


Body = Fence | Commit | Skip | Retire | Rotate

BODIES: dict[str, type[Body]] = {body.kind: body for body in (Fence, Commit, Skip, Retire, Rotate)}


def download_bytes(base: Digest | None, packs: tuple[ObjectRef, ...], full: Full | None) -> int:
    """Return what a follower downloads for a version: its patch, or its full for want of one."""
    if base is None and full is not None:
        return full.nbytes
    return sum(pack.size for pack in packs)


def _collectable(key: str) -> str:
    """Return `key` if a record may retire it: records, layouts and hints never are."""
    try:
        keys.parse_pack(key)
    except InvalidKey:
        keys.parse_full_prefix(key)
    return key
