"""The pause of one engine: begun by a policy, ended by whoever resumes, or by itself.

Law: after the lease, and after a try that failed, resuming is tried until it succeeds or the engine
is dead: whoever asked for the pause may be gone.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import nullcontext
from typing import Literal

from skerry.inference.engine import EngineError
from skerry.inference.vllm.core import Core, PauseMode
from skerry.inference.vllm.streams import Streams

logger = logging.getLogger(__name__)

Policy = Literal["keep", "recompute", "drain", "abort"]

# What each policy is in vLLM's words, and whether running requests compute their context anew.
_MODES: dict[Policy, tuple[PauseMode, bool]] = {
    "keep": ("keep", False),
    "recompute": ("keep", True),
    "drain": ("wait", False),
    "abort": ("abort", False),
}


class Pause:
    """`control` is held by whoever changes the engine; `retry_s` passes between tries to resume."""

    def __init__(
        self, core: Core, streams: Streams, control: asyncio.Lock, *, retry_s: float = 1.0
    ) -> None:
        self._core = core
        self._streams = streams
        self._control = control
        self._retry_s = retry_s
        self._beginning: asyncio.Future[None] | None = None
        self._lease: asyncio.Task[None] | None = None
        self.holds = False

    async def begin(self, policy: Policy, lease_s: float) -> None:
        """Stop making tokens, with `control` held; the lease begins when it has succeeded.

        Raises EngineError if it is called off before all requests have drained.
        """
        mode, clear = _MODES[policy]
        self.holds = True
        with self._streams.ending() if mode == "abort" else nullcontext():
            self._beginning = asyncio.ensure_future(self._core.pause(mode, clear_cache=clear))
            try:
                await asyncio.wait([self._beginning])
                if self._beginning.cancelled():
                    raise EngineError("the pause was called off")
                self._beginning.result()
            finally:
                self._beginning = None
                self._rent(lease_s)

    async def begin_load(self) -> None:
        """End all requests and stop making tokens, with `control` held and nothing cached."""
        self.holds = True
        with self._streams.ending():
            await self._core.pause("abort", clear_cache=True)

    def call_off(self) -> None:
        """Let a pause that still drains fail: it must not keep the engine for ever."""
        if self._beginning is not None:
            self._beginning.cancel()

    async def end(self) -> None:
        """Make tokens again, with `control` held.  Idempotent; one that fails is tried again."""
        try:
            await self._core.resume()
        except Exception:
            if self._core.alive:
                self._rent(self._retry_s)
            raise
        self.holds = False
        self._drop()

    def _rent(self, lease_s: float) -> None:
        self._drop()
        self._lease = asyncio.create_task(self._expire(lease_s))

    def _drop(self) -> None:
        lease, self._lease = self._lease, None
        if lease is not None and lease is not asyncio.current_task():
            lease.cancel()

    async def _expire(self, lease_s: float) -> None:
        await asyncio.sleep(lease_s)
        async with self._control:
            if not self.holds:
                return
            logger.warning("paused, and nobody resumed for %g s: resuming", lease_s)
            try:
                await self.end()
            except Exception as error:  # of a foreign engine, and nobody waits for this task
                logger.warning("not resumed: %r", error)
