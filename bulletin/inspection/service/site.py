"""What all routes share: what was seen last, and threads for what takes time.

Questions about the log are computed on one thread pool, calls to the store run on another, so a
store that never answers takes nothing from those who do not need it; what takes seconds to compute
has a thread of its own, and is refused while one is computed and one waits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypeVar

from pydantic import TypeAdapter
from starlette.requests import Request
from starlette.responses import Response

from skerry.bulletin.inspection.described import Descriptions
from skerry.bulletin.inspection.follower import Follower, Snapshot
from skerry.bulletin.inspection.service.config import ServiceConfig
from skerry.bulletin.inspection.service.replies import answer, unchanged
from skerry.bulletin.inspection.workers import Workers

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

    async def answer(
        self,
        request: Request,
        adapter: TypeAdapter[Any],
        compute: Callable[[], object],
        *,
        tag: str | None,
        immutable: bool = False,
        from_store: bool = False,
        heavy: bool = False,
    ) -> Response:
        """Compute an answer on a thread, unless the client has it.

        Raises what `compute` does, Busy, TimeoutError of the store, and TooLong.
        """
        known = unchanged(request, tag, immutable=immutable)
        if known is not None:
            return known

        def body() -> bytes:
            return adapter.dump_json(compute())

        if from_store:
            data = await self.store.run(body, limit_s=self.config.store_limit_s)
        else:
            workers = self.heavy if heavy else self.computing
            try:
                data = await workers.run(body, limit_s=COMPUTING_LIMIT_S)
            except TimeoutError:
                raise TooLong(f"not computed within {COMPUTING_LIMIT_S:g} s") from None
        return answer(request, data, tag, immutable=immutable)


def release() -> str:
    """Return the version of this package, as far as it is known."""
    try:
        return version("skerry")
    except PackageNotFoundError:
        return "unknown"
