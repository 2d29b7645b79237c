"""Uploading what a record will name: content-addressed, durable, and its size read back.

Law: what `check` lets pass was in the store, whole, after it was uploaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from skerry.bulletin import keys
from skerry.bulletin.errors import NotFound, ShortObject
from skerry.bulletin.manifest import Manifest
from skerry.bulletin.records import FileRef, Full, ObjectRef
from skerry.bulletin.store import ObjectStore
from skerry.codec.digest import Digest, DigestStream, digest_bytes
from skerry.codec.layout import Layout, check_name


class Uploads:
    """The objects of one writer's next record.  May be used from several threads at once."""

    def __init__(self, store: ObjectStore, *, nonce: Callable[[], str]) -> None:
        self._store = store
        self._nonce = nonce
        self._durable: dict[str, int] = {}

    def layout(self, layout: Layout) -> Digest:
        """Store a layout, unless it is there already; return its digest."""
        data = layout.to_bytes()
        digest = digest_bytes(data)
        key = keys.layout(digest)
        try:
            self._read_back(key, len(data))
        except (NotFound, ShortObject):
            self._put(key, data)
        return digest

    def manifest(self, manifest: Manifest) -> Digest:
        """Store a manifest; return its digest."""
        data = manifest.to_bytes()
        digest = digest_bytes(data)
        self._put(keys.manifest(digest), data)
        return digest

    def pack(self, epoch: int, data: bytes) -> ObjectRef:
        """Store a pack."""
        digest = digest_bytes(data)
        key = keys.pack(epoch, digest)
        self._put(key, data)
        return ObjectRef(key=key, size=len(data), digest=digest)

    def full(self, epoch: int, files: Iterable[tuple[str, Iterable[bytes]]]) -> Full:
        """Store a full version under a fresh prefix, hashing while writing.

        Raises FormatError for a name that is not a plain relative path, ValueError for a name given
        twice.
        """
        prefix = keys.full_prefix(epoch, self._nonce())
        refs: dict[str, FileRef] = {}
        for name, parts in files:
            if check_name(name) in refs:
                raise ValueError(f"file {name!r} is given twice")
            key = keys.full_file(prefix, name)
            stream = DigestStream()
            self._store.put(key, _hashed(parts, stream))
            self._read_back(key, stream.size)
            refs[name] = FileRef(name=name, size=stream.size, digest=stream.digest())
        return Full(prefix=prefix, files=tuple(refs[name] for name in sorted(refs)))

    def check(self, *, named: Iterable[str] = (), refs: Iterable[ObjectRef] = ()) -> None:
        """Look for every object that was not uploaded here since the last record.

        Raises NotFound, or ShortObject for a reference to another size.
        """
        for key in named:
            if key not in self._durable:
                self._store.size(key)
        for ref in refs:
            if self._durable.get(ref.key) != ref.size:
                self._check_size(ref.key, ref.size)

    def forget(self) -> None:
        """A record has been appended: look again before the next one."""
        self._durable.clear()

    def _put(self, key: str, data: bytes) -> None:
        self._store.put(key, [data])
        self._read_back(key, len(data))

    def _read_back(self, key: str, size: int) -> None:
        self._check_size(key, size)
        self._durable[key] = size

    def _check_size(self, key: str, size: int) -> None:
        found = self._store.size(key)
        if found != size:
            raise ShortObject(key, expected=size, found=found)


def _hashed(parts: Iterable[bytes], stream: DigestStream) -> Iterator[bytes]:
    for part in parts:
        stream.update(part)
        yield part
