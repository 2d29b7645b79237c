"""Looks at the islands' statuses, and remembers how far behind each one was."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from skerry.bulletin import keys
from skerry.bulletin.errors import (
    NotFound,
    RecordInvalid,
    StoreDenied,
    StoreError,
    Unanswered,
)
from skerry.bulletin.inspection.islands import Look, Refused
from skerry.bulletin.inspection.view import View
from skerry.bulletin.inspection.workers import Workers
from skerry.bulletin.status import MAX_ISLANDS, STATUS_LIMIT_BYTES, IslandReport
from skerry.bulletin.store import ObjectStore

LOOKS_KEPT = 120
_AT_ONCE = 8

Found = IslandReport | Refused | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Islands:
    """What one look found; `denied` says why there is nothing to see, `more` that it was too much.

    `news`: it differs from the look before.
    """

    reports: Mapping[str, IslandReport] = field(default_factory=dict)
    looks: Mapping[str, Sequence[Look]] = field(default_factory=dict)
    refused: tuple[Refused, ...] = ()
    more: bool = False
    denied: str | None = None
    looked_ms: int | None = None
    news: bool = False


class Lookout:
    """One thread at a time."""

    def __init__(self, store: ObjectStore, *, now: Callable[[], int]) -> None:
        self._store = store
        self._now = now
        self._workers = Workers("skerry-lookout", threads=_AT_ONCE, waiting=MAX_ISLANDS)
        self._looks: dict[str, deque[Look]] = {}
        self._last = Islands()

    def look(self, view: View) -> Islands:
        """Read every status.

        Raises StoreError, but for what says nothing about the others, and Busy while what an
        earlier look asked for has still not been answered.
        """
        denied = None
        names: list[str] = []
        try:
            names = list(islice(self._store.list_after(keys.ISLAND_PREFIX), MAX_ISLANDS + 1))
        except StoreDenied as error:
            denied = str(error)
        more = len(names) > MAX_ISLANDS
        found = self._read_all(names[:MAX_ISLANDS])
        reports = {r.island: r for r in found if isinstance(r, IslandReport)}
        refused = tuple(r for r in found if isinstance(r, Refused))
        self._remember(view, reports)
        islands = Islands(
            reports=reports,
            looks={name: tuple(looks) for name, looks in self._looks.items()},
            refused=refused,
            more=more,
            denied=denied,
            looked_ms=self._now(),
            news=reports != self._last.reports or refused != self._last.refused,
        )
        self._last = islands
        return islands

    def _read_all(self, names: Sequence[str]) -> list[Found]:
        futures: list[Future[Found]] = []
        try:
            futures.extend(self._workers.submit(partial(self._read, key)) for key in names)
            return [future.result() for future in futures]
        finally:  # after an error the others would take the places of the next look's
            for future in futures:
                future.cancel()

    def _read(self, key: str) -> Found:
        try:
            data = self._store.get(key, limit_bytes=STATUS_LIMIT_BYTES)
            return IslandReport.from_bytes(data, what=key)
        except NotFound:
            return None
        except Unanswered:
            raise  # the store is at fault, not this status: what was seen last stays
        except (RecordInvalid, StoreError) as error:
            why = str(error)[:500].encode(errors="replace").decode()  # it may quote lone surrogates
            return Refused(key=key, why=why)

    def _remember(self, view: View, reports: Mapping[str, IslandReport]) -> None:
        for gone in self._looks.keys() - reports.keys():
            del self._looks[gone]
        for name, report in reports.items():
            looks = self._looks.setdefault(name, deque(maxlen=LOOKS_KEPT))
            lag = view.lag(report.version)
            looks.append(Look(time_ms=self._now(), version=report.version, lag=lag))
