"""Waits at a relay for the next record, so that an idle island asks nobody far away.

What a relay says is only a reason to look: the agent reads the log as it always does.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence

from skerry.bulletin import keys
from skerry.island_agent.agent import Agent

try:
    import aiohttp
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"watching a relay needs {error.name}: pip install 'skerry[agent]'", name=error.name
    ) from error

logger = logging.getLogger(__name__)

MARK = "X-Skerry-Relay"  # in every answer of a relay

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 30.0
_SLACK_S = 10.0  # how much later than asked for a relay may answer


class LogWatcher:
    """Nudges `agent` whenever a relay has a record that the agent has not read.

    One of the relays at `urls` is asked; the next one when it does not answer.
    """

    def __init__(
        self,
        urls: Sequence[str],
        agent: Agent,
        *,
        wait_s: float = 20.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._roots = deque(url.rstrip("/") for url in urls)
        self._agent = agent
        self._wait_s = wait_s
        self._clock = clock
        self.asked = 0

    async def run(self) -> None:
        """Watch until cancelled.  A relay that is away is tried again, ever more rarely."""
        timeout = aiohttp.ClientTimeout(total=self._wait_s + _SLACK_S, sock_connect=5)
        pause_s = _FIRST_PAUSE_S
        try:
            async with aiohttp.ClientSession(
                timeout=timeout, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False
            ) as session:
                while True:
                    seq = self._agent.reader.state.seq + 1
                    began = self._clock()
                    found = await self._ask(session, seq)
                    self._agent.watched(found is not None)
                    if found is None:
                        self._roots.rotate(-1)
                    if found:
                        self._agent.nudge()
                    waited = self._clock() - began >= self._wait_s / 2
                    if found is False and waited:
                        pause_s = _FIRST_PAUSE_S
                        continue
                    await asyncio.sleep(pause_s)
                    # A record that the agent does not take, or an answer that came too soon.
                    moved = self._agent.reader.state.seq >= seq
                    pause_s = _FIRST_PAUSE_S if moved else min(2 * pause_s, _LONGEST_PAUSE_S)
        finally:
            self._agent.watched(False)

    async def _ask(self, session: aiohttp.ClientSession, seq: int) -> bool | None:
        """Say whether there is a record in the slot; None: this is no relay, or it is away."""
        self.asked += 1
        url = f"{self._roots[0]}/{keys.log(seq)}?wait={self._wait_s:g}"
        try:
            async with session.get(url, allow_redirects=False) as answer:
                if MARK not in answer.headers or answer.status not in (200, 404):
                    return None
                return answer.status == 200
        except (aiohttp.ClientError, OSError) as error:  # TimeoutError is an OSError
            logger.debug("relay does not answer url=%s error=%r", url, error)
            return None
