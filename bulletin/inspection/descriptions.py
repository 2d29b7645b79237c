"""Layouts and manifests from the store, kept while they are asked for: they never change.

Reading and parsing are apart, because a service waits for them in different places: the one takes
what the store takes, the other seconds of a processor for a model of many tensors.  What is kept is
bounded by the tensors in it, whatever a hostile manifest holds.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Generic, TypeVar

from skerry.bulletin.inspection.described import Described
from skerry.bulletin.inspection.table import TensorTable
from skerry.bulletin.patience import Patience
from skerry.bulletin.reader import BulletinReader, parse_layout, parse_manifest
from skerry.bulletin.records import Commit
from skerry.bulletin.store import ObjectStore
from skerry.codec.digest import Digest

T = TypeVar("T")

TABLES_KEPT = 200_000  # tensors: about 200 MB
DESCRIBED_KEPT = 8_000_000  # tensors, of 16 bytes each: 128 columns of the largest models
STORED_KEPT_BYTES = 32 << 20  # what was read and is about to be parsed, by somebody else perhaps


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What the store has of one version's description; `table` if the layout was parsed before."""

    table: TensorTable | None
    layout: bytes
    manifest: bytes


class Descriptions:
    """Reads what a version's record names.  Any thread may; one reads what several ask for."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._stored: _Kept[bytes] = _Kept(STORED_KEPT_BYTES)
        self._tables: _Kept[TensorTable] = _Kept(TABLES_KEPT)
        self._described: _Kept[Described] = _Kept(DESCRIBED_KEPT)

    def kept(self, commit: Commit) -> Described | None:
        """Return what `of` returns if that takes no time."""
        return self._described.peek(commit.manifest)

    def of(self, commit: Commit) -> Described:
        """Raises what `fetch` and `parse` raise."""
        kept = self.kept(commit)
        return self.parse(commit, self.fetch(commit)) if kept is None else kept

    def fetch(self, commit: Commit) -> Stored:
        """Ask the store.  Raises StoreError (NotFound: collected, or not there yet) or Tampered."""
        # A reader of its own: one that is shared would make calls wait for one another.
        reader = BulletinReader(self._store, wait=Patience(limit_s=0.0))
        table, layout = self._tables.peek(commit.layout), b""
        if table is None:
            layout = self._read(commit.layout, reader.stored_layout)
        return Stored(
            table=table,
            layout=layout,
            manifest=self._read(commit.manifest, reader.stored_manifest),
        )

    def parse(self, commit: Commit, stored: Stored) -> Described:
        """Put together what was fetched.  Raises RecordInvalid."""

        def tabled() -> TensorTable:
            return TensorTable(parse_layout(commit.layout, stored.layout))

        def describe() -> Described:
            table = stored.table or self._tables.get(
                commit.layout, tabled, weigh=lambda made: len(made.specs)
            )
            manifest = parse_manifest(commit.manifest, stored.manifest)
            return Described.of(commit, table, manifest)

        return self._described.get(
            commit.manifest, describe, weigh=lambda described: len(described.table.specs)
        )

    def _read(self, digest: Digest, read: Callable[[Digest], bytes]) -> bytes:
        return self._stored.get(digest, lambda: read(digest), weigh=len)


class _Kept(Generic[T]):
    """What was used last, by digest, up to `most` of what `weigh` counts; the last one always."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._values: OrderedDict[Digest, tuple[T, int]] = OrderedDict()
        self._weight = 0
        self._flights: dict[Digest, Future[T]] = {}

    def peek(self, digest: Digest) -> T | None:
        """Return what is kept, at once."""
        with self._lock:
            if digest not in self._values:
                return None
            self._values.move_to_end(digest)
            return self._values[digest][0]

    def get(self, digest: Digest, read: Callable[[], T], *, weigh: Callable[[T], int]) -> T:
        with self._lock:
            if digest in self._values:
                self._values.move_to_end(digest)
                return self._values[digest][0]
            flight = self._flights.get(digest)
            mine = flight is None
            if flight is None:
                flight = self._flights[digest] = Future()
        if not mine:
            return flight.result()
        try:
            value = read()
        except BaseException as error:
            with self._lock:
                del self._flights[digest]
            flight.set_exception(error)
            raise
        with self._lock:
            del self._flights[digest]
            self._values[digest] = value, max(1, weigh(value))
            self._weight += self._values[digest][1]
            while self._weight > self._most and len(self._values) > 1:
                self._weight -= self._values.popitem(last=False)[1][1]
        flight.set_result(value)
        return value
