"""One request on its way through the gate to a route of the engine's own API, and back.

A task holds the ticket while the engine answers, apart from whoever reads the answer.  What piles
up for a slow reader is bounded; beyond that the engine waits for it, and so does a swap, but not
for one that reads nothing any more.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping

from skerry.inference.accepted import AcceptedVersions
from skerry.inference.config import ServerConfig
from skerry.inference.engine import (
    EngineError,
    PassedRequest,
    PassingEngine,
    RequestUnsupported,
)
from skerry.inference.errors import (
    EngineUnavailable,
    RequestInvalid,
    RequestRevoked,
    RolloutError,
    Unreachable,
    WeightVersionNotReady,
)
from skerry.inference.gate import AdmissionGate
from skerry.inference.slot import Changes

logger = logging.getLogger(__name__)


class Passage:
    """`start` it, await `begun`, read `pieces`, and always `close` it."""

    def __init__(
        self,
        *,
        gate: AdmissionGate,
        engines: Mapping[str, PassingEngine],
        route: str,
        body: Mapping[str, object],
        headers: Mapping[str, str],
        accepted: AcceptedVersions,
        wait_s: float,
        config: ServerConfig,
        on_admitted: Callable[[float], None],
    ) -> None:
        self._gate = gate
        self._engines = engines
        self._route = route
        self._body = body
        self._headers = headers
        self._accepted = accepted
        self._wait_s = wait_s
        self._config = config
        self._on_admitted = on_admitted
        self._changes = Changes()
        self._held: deque[bytes] = deque()
        self._held_bytes = 0
        self._taken = 0  # pieces that were read
        self._task: asyncio.Task[None] | None = None
        self.version = -1
        self.status = 0
        self.content_type = ""

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(lambda _: self._changes.wake())

    async def begun(self) -> None:
        """Return when the engine has begun to answer.  Raises the RolloutError that it cannot."""
        assert self._task is not None
        while not self.status and not self._task.done():
            await self._changes.wait(None)
        if not self.status:
            self._task.result()

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the answer as it comes.  Raises RolloutError if it does not come whole."""
        assert self._task is not None
        while True:
            if self._held:
                piece = self._held.popleft()
                self._held_bytes -= len(piece)
                self._taken += 1
                self._changes.wake()
                yield piece
            elif self._task.done():
                self._task.result()
                return
            else:
                await self._changes.wait(None)

    async def close(self) -> None:
        """Cancel what still runs, and return when the ticket is free."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait([self._task])
        error = None if self._task.cancelled() else self._task.exception()
        if error is not None and self.status:
            logger.warning("an answer was cut off: %s", error)

    async def _run(self) -> None:
        try:
            async with self._gate.admit(
                self._accepted, self._wait_s, pinned=True, among=self._engines
            ) as ticket:
                self._on_admitted(ticket.waited_s)
                self.version = ticket.version
                asked = PassedRequest(
                    route=self._route,
                    body=self._body,
                    version=ticket.version,
                    headers=self._headers,
                )
                async with self._engines[ticket.engine].ask(asked) as answer:
                    self.content_type, self.status = answer.content_type, answer.status
                    self._changes.wake()
                    async for piece in answer.pieces:
                        await self._hold(piece)
        except RequestRevoked as revoked:
            raise self._unserved(WeightVersionNotReady, revoked) from revoked
        except RequestUnsupported as error:
            raise RequestInvalid(str(error), status=422) from error
        except EngineError as error:
            raise self._unserved(EngineUnavailable, error) from error

    async def _hold(self, piece: bytes) -> None:
        while self._held_bytes >= self._config.max_held_bytes:
            await self._read_on()
        self._held.append(piece)
        self._held_bytes += len(piece)
        self._changes.wake()

    async def _read_on(self) -> None:
        """Return when something was read.  Raises Unreachable for a client that stalls."""
        taken, limit_s = self._taken, self._config.stall_s
        try:
            async with asyncio.timeout(limit_s):
                while self._taken == taken:
                    await self._changes.wait(None)
        except TimeoutError:
            raise Unreachable(f"the client has read nothing for {limit_s:g} s") from None

    def _unserved(
        self, kind: type[WeightVersionNotReady | EngineUnavailable], why: object
    ) -> RolloutError:
        return kind(str(why), served=self._gate.served(), newest=self._gate.known.newest)
