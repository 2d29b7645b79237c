"""One change of an engine's version: drain, pause, install, flip the label, resume.

Laws: `resume` is called after every `pause`, whatever happened; the label moves only after an
install that returned; weights of which nothing is known are never served.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

from skerry.inference.config import GateConfig
from skerry.inference.engine import EngineBroken, InstallFailed
from skerry.inference.errors import StillPaused
from skerry.inference.slot import Slot

logger = logging.getLogger(__name__)

Install = Callable[[], Awaitable[None]]
Outcome = Literal["installed", "failed", "broken"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapReport:
    """How one change went.

    `drain_s` passed before the engine was told to pause, `pause_s` until it made tokens again;
    `revoked` requests were ended early.  `base` is the version that was served before.
    """

    engine: str
    base: int | None
    version: int
    outcome: Outcome
    drain_s: float
    pause_s: float
    revoked: int


@dataclass(slots=True, kw_only=True)
class Swap:
    """The change of `slot` to `version`; `whole` loads a checkpoint instead of patching words.

    `ready` is awaited between the drain and the pause, while the engine still serves: it may raise
    InstallFailed, and then nothing has changed.
    """

    slot: Slot
    version: int
    install: Install
    whole: bool
    drain_s: float | None
    ready: Install | None
    config: GateConfig
    clock: Callable[[], float]
    on_end: Callable[[SwapReport], None]
    outcome: Outcome = "failed"
    revoked: int = 0
    _paused_at: float = 0.0

    async def run(self) -> SwapReport:
        """Carry it out.  Raises what `install` raises, and StillPaused."""
        slot, base, began = self.slot, self.slot.version, self.clock()
        slot.withdrawn = None
        if self.whole:
            slot.error = f"version {self.version} is being loaded"
            slot.label(None)  # loading ends running requests, so none may start
        self.revoked = await slot.drain(None if self.whole else self.version, self.drain_s)
        drained = self._paused_at = self.clock()
        try:
            await self._install()
        finally:
            try:
                self._settle()
                await self._resume()
            finally:
                report = SwapReport(
                    engine=slot.name,
                    base=base,
                    version=self.version,
                    outcome=self.outcome,
                    drain_s=drained - began,
                    pause_s=self.clock() - self._paused_at,
                    revoked=self.revoked,
                )
                logger.info("engine %s: swap ended: %s", slot.name, report)
                self.on_end(report)
        return report

    async def _install(self) -> None:
        """Pause and install; `outcome` then says what the weights are."""
        slot = self.slot
        try:
            if self.ready is not None:
                await self.ready()
                self._paused_at = self.clock()
            slot.error = f"the swap to {self.version} was cut off"
            if not self.whole:
                await self._pause()  # loading needs an engine that can end its requests
            self.outcome = "broken"  # until `install` itself says better
            await self.install()
            if slot.withdrawn is not None:  # the agent took it out meanwhile, or what it came from
                raise EngineBroken(slot.withdrawn)
        except InstallFailed as error:
            self.outcome, slot.error = "failed", str(error)
            raise
        except EngineBroken as error:
            self.outcome, slot.error = "broken", str(error)
            raise
        except Exception as error:  # a foreign engine's; only `outcome` says what it means
            slot.error = repr(error)
            raise
        self.outcome, slot.error = "installed", None

    async def _pause(self) -> None:
        """Pause; an engine that waits for its requests first may take until `drain_s`, and then has
        none."""
        slot = self.slot
        pausing = asyncio.ensure_future(slot.engine.pause())
        try:
            if getattr(slot.engine, "pause_drains", False):
                await asyncio.wait([pausing], timeout=self.drain_s)
                if not pausing.done():
                    self.revoked += slot.revoke(None, f"not drained within {self.drain_s:g} s")
            async with asyncio.timeout(self.config.pause_limit_s):
                await pausing
        finally:
            pausing.cancel()

    def _settle(self) -> None:
        """Make the label true, before the engine runs again."""
        if self.outcome == "installed":
            self.slot.label(self.version)
        elif self.outcome == "broken":
            self.slot.label(None)
            why = f"weights are unknown: {self.slot.error}"
            self.revoked += self.slot.revoke(None, why)

    async def _resume(self) -> None:
        """Resume, also while being cancelled: a paused engine would hang everybody."""
        resuming = asyncio.create_task(self._resume_until())
        cancelled: asyncio.CancelledError | None = None
        while not resuming.done():
            try:
                await asyncio.wait({resuming})
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled from resuming.exception()
        resuming.result()

    async def _resume_until(self) -> None:
        slot, backoff_s = self.slot, self.config.resume_backoff_s
        for attempt in range(1, self.config.resume_tries + 1):
            try:
                async with asyncio.timeout(self.config.pause_limit_s):
                    await slot.engine.resume()
            # The boundary to foreign engines: whatever a try meets, they must not stay paused.
            except Exception as error:
                logger.warning("engine %s: resume, try %d: %r", slot.name, attempt, error)
                cause = error
            else:
                return
            if attempt < self.config.resume_tries:
                await asyncio.sleep(backoff_s * 2 ** (attempt - 1))
        self.outcome, slot.error = "broken", f"stays paused: {cause!r}"
        slot.label(None)
        slot.revoke(None, slot.error)
        raise StillPaused(f"engine {slot.name} {slot.error}") from cause
