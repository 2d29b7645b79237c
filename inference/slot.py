"""One engine behind the gate: what it serves, who runs on it, and the tickets that say so."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass, field

from skerry.inference.accepted import AcceptedVersions
from skerry.inference.decision import EngineView
from skerry.inference.engine import Engine

logger = logging.getLogger(__name__)


class Changes:
    """Wakes everybody who waits, at every change; who wakes up looks at the state again."""

    def __init__(self) -> None:
        self._watchers: set[asyncio.Future[None]] = set()

    def wake(self) -> None:
        for watcher in self._watchers:
            if not watcher.done():
                watcher.set_result(None)

    async def wait(self, limit_s: float | None) -> None:
        """Return at the next change, or after `limit_s`; None has no limit."""
        watcher = asyncio.get_running_loop().create_future()
        self._watchers.add(watcher)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(limit_s):
                    await watcher
        finally:
            self._watchers.discard(watcher)


@dataclass(slots=True, kw_only=True, eq=False)
class Ticket:
    """The right to run on `engine`, which served `version` when the request was admitted.

    `holder` is the task that entered; `cancels` counts the cancellations it had met before.
    """

    engine: str
    version: int
    accepted: AcceptedVersions
    waited_s: float
    holder: asyncio.Task[object]
    cancels: int
    revoked: str | None = None

    def revoke(self, reason: str) -> None:
        """Cancel the holder, once; nothing that the engine makes from now on reaches it."""
        if self.revoked is None:
            self.revoked = reason
            self.holder.cancel(reason)


@dataclass(slots=True, kw_only=True, eq=False)
class Slot:
    """What the gate knows of one engine, or of one group that must be one version.

    `withdrawn` says why the agent took its version away; a swap then ends with none, too.
    """

    name: str
    engine: Engine
    changes: Changes
    version: int | None = None
    target: int | None = None
    error: str | None = None
    withdrawn: str | None = None
    tickets: set[Ticket] = field(default_factory=set)
    swapping: asyncio.Lock = field(default_factory=asyncio.Lock)

    def view(self) -> EngineView:
        return EngineView(
            version=self.version, target=self.target, running=len(self.tickets), error=self.error
        )

    def label(self, version: int | None) -> None:
        """Advertise `version`."""
        if version != self.version:
            logger.info("engine %s: serves %s, served %s", self.name, version, self.version)
        self.version = version
        self.changes.wake()

    def release(self, ticket: Ticket) -> None:
        self.tickets.discard(ticket)
        self.changes.wake()

    def excluded(self, version: int | None) -> list[Ticket]:
        """Return the running requests that do not accept `version`; nobody accepts None."""
        return [t for t in self.tickets if version is None or not t.accepted.contains(version)]

    def revoke(self, version: int | None, reason: str) -> int:
        """Take back the tickets that do not accept `version`; return how many that were."""
        tickets = [ticket for ticket in self.excluded(version) if ticket.revoked is None]
        for ticket in tickets:
            ticket.revoke(reason)
        return len(tickets)

    async def drain(self, version: int | None, drain_s: float | None) -> int:
        """Return when nobody runs who does not accept `version`.

        After `drain_s` (None: never) those who are left are revoked; returns how many that were.
        """
        loop = asyncio.get_running_loop()
        deadline = None if drain_s is None else loop.time() + drain_s
        revoked = 0
        while self.excluded(version):
            left_s = None if deadline is None else deadline - loop.time()
            if left_s is not None and left_s <= 0:
                revoked += self.revoke(version, f"not drained within {drain_s:g} s")
                left_s = deadline = None
            await self.changes.wait(left_s)
        return revoked
