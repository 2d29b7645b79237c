"""Layouts and manifests from the store, kept while they are asked for: they never change.

What is kept is bounded by the tensors and cells in it, whatever a hostile manifest holds.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Generic, TypeVar

from skerry.bulletin.inspection.names import Place
from skerry.bulletin.inspection.tensors import Cell, Described
from skerry.bulletin.patience import Patience
from skerry.bulletin.reader import BulletinReader
from skerry.bulletin.records import Commit
from skerry.bulletin.store import ObjectStore
from skerry.codec.digest import Digest
from skerry.codec.layout import Layout

T = TypeVar("T")

TENSORS_KEPT = 200_000  # about 100 MB of rows
CELLS_KEPT = 200_000


class Descriptions:
    """Reads what a version's record names.  Any thread may; one reads what several ask for."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._layouts: _Kept[Layout] = _Kept(TENSORS_KEPT)
        self._described: _Kept[Described] = _Kept(TENSORS_KEPT)
        self._cells: _Kept[Mapping[Place, Cell]] = _Kept(CELLS_KEPT)

    def of(self, commit: Commit) -> Described:
        """Raises StoreError (NotFound: collected, or not there yet), Tampered or RecordInvalid."""
        return self._described.get(
            commit.manifest, lambda: self._read(commit), weigh=lambda d: len(d.layout.tensors)
        )

    def cells(self, commit: Commit) -> Mapping[Place, Cell]:
        """Return what `of` says, by layer and projection; far smaller, so far more are kept."""
        return self._cells.get(commit.manifest, lambda: self.of(commit).cells, weigh=len)

    def _read(self, commit: Commit) -> Described:
        # A reader of its own: one that is shared would make calls wait for one another.
        reader = BulletinReader(self._store, wait=Patience(limit_s=0.0))
        layout = self._layouts.get(
            commit.layout, lambda: reader.layout(commit.layout), weigh=lambda la: len(la.tensors)
        )
        return Described.of(commit, layout, reader.manifest(commit.manifest))


class _Kept(Generic[T]):
    """What was used last, by digest, up to `most` of what `weigh` counts; the last one always."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._values: OrderedDict[Digest, tuple[T, int]] = OrderedDict()
        self._weight = 0
        self._flights: dict[Digest, Future[T]] = {}

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
