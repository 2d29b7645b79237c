"""What all routes share: what was seen last, and threads for what takes time.

Questions about the log are computed on one thread pool, calls to the store run on another, so a
store that never answers takes nothing from those who do not need it.  Manifests are parsed on a
third, whose few threads leave the loop its turns: a model of a hundred thousand tensors takes
seconds for each.  What takes seconds to compute from the log has a thread of its own, and is
refused while one is computed and one waits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypeVar

from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import Response

from skerry.bulletin.inspection.described import Described
from skerry.bulletin.inspection.descriptions import Descriptions
from skerry.bulletin.inspection.follower import Follower, Snapshot
from skerry.bulletin.inspection.service.config import ServiceConfig
from skerry.bulletin.inspection.service.replies import (
    Body,
    accepts_gzip,
    answer,
    packed,
    unchanged,
)
from skerry.bulletin.inspection.workers import Workers
from skerry.bulletin.records import Commit

T = TypeVar("T")

COMPUTING_LIMIT_S = 30.0
_STORE_THREADS = 8
_STORE_WAITING = 512


class TooLong(Exception):
    """An answer took too long to compute, whatever the store does."""


class NotRead(Exception):
    """The log has not been read yet, or there is none."""


@dataclass(frozen=True, slots=True)
class Site:
    """One run, served."""

    follower: Follower
    descriptions: Descriptions
    config: ServiceConfig
    address: str
    release: str
    computing: Workers
    heavy: Workers
    parsing: Workers
    store: Workers

    @classmethod
    def of(cls, follower: Follower, config: ServiceConfig, *, address: str) -> Site:
        return cls(
            follower=follower,
            descriptions=Descriptions(follower.store),
            config=config,
            address=address,
            release=release(),
            computing=Workers("skerry-answers", threads=2, waiting=256),
            heavy=Workers("skerry-heavy", threads=1, waiting=1),
            parsing=Workers("skerry-parse", threads=2, waiting=_STORE_WAITING),
            store=Workers("skerry-store", threads=_STORE_THREADS, waiting=_STORE_WAITING),
        )

    def seen(self) -> Snapshot:
        """Return what was seen last, and tell the follower that somebody looks.  Raises NotRead."""
        self.follower.attend()
        snapshot = self.follower.snapshot
        if snapshot.view.state.seq < 0:
            report = self.follower.store_state.report()
            if report.state == "empty":
                raise NotRead("there is no log at this address")
            why = "" if report.problem is None else f": {report.problem.message}"
            raise NotRead(f"the log has not been read yet{why}")
        return snapshot

    def log_tag(self, snapshot: Snapshot) -> str:
        """Return the ETag of everything that follows from the log and whose key was given."""
        state = snapshot.view.state
        pinned = "" if state.pinned_key is None else "-pinned"
        return f'"{str(state.head)[:24]}{pinned}-{self.release}"'

    def islands_tag(self, snapshot: Snapshot) -> str:
        """Return the ETag of what follows from the log and the last look at the islands."""
        return f'{self.log_tag(snapshot)[:-1]}-{snapshot.islands.looked_ms}"'

    async def described(self, commit: Commit, *, limit_s: float | None = None) -> Described:
        """Return what a version changed, read and parsed unless it is kept.

        `limit_s` bounds the parsing.  Raises what Descriptions does, Busy, TimeoutError of the
        store, and TooLong; who asks again after that finds what was done meanwhile.
        """
        kept = self.descriptions.kept(commit)
        if kept is not None:
            return kept
        stored = await self.store.run(
            lambda: self.descriptions.fetch(commit), limit_s=self.config.store_limit_s
        )
        return await self.compute(
            self.parsing, lambda: self.descriptions.parse(commit, stored), limit_s=limit_s
        )

    async def compute(
        self, workers: Workers, work: Callable[[], T], *, limit_s: float | None = None
    ) -> T:
        """Do it on a thread.  Raises Busy and TooLong."""
        limit_s = COMPUTING_LIMIT_S if limit_s is None else limit_s
        try:
            return await workers.run(work, limit_s=limit_s)
        except TimeoutError:
            raise TooLong(f"not computed within {limit_s:g} s") from None

    async def answer(
        self,
        request: Request,
        adapter: TypeAdapter[Any],
        compute: Callable[[], object],
        *,
        tag: str | None,
        immutable: bool = False,
        heavy: bool = False,
    ) -> Response:
        """Compute an answer on a thread, unless the client has it.

        Raises what `compute` does, Busy and TooLong.
        """
        known = unchanged(request, tag, immutable=immutable)
        if known is not None:
            return known
        takes_gzip = accepts_gzip(request)

        def body() -> Body:  # compressed there, too: megabytes would hold up everybody else
            return packed(adapter.dump_json(compute()), takes_gzip=takes_gzip)

        data = await self.compute(self.heavy if heavy else self.computing, body)
        return answer(data, tag, immutable=immutable)


def release() -> str:
    """Return the version of this package, as far as it is known."""
    try:
        return version("skerry")
    except PackageNotFoundError:
        return "unknown"
