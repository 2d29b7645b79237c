"""How many ranges to read side by side: as many as still make the whole faster.

Additive increase while the measured throughput grows with the number, a step back when it falls,
multiplicative decrease on errors.  Over a link that loses packets one stream carries little
whatever the bandwidth, and only their number helps; a busy server is helped by fewer.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType

LEAST = 1
START = 8
MOST = 48

_GAIN = 1.05  # what a larger number must bring
_LOSS = 0.85  # below this share of the best rate the number is a step too high
_WINDOW_S = 0.25  # a rate is measured over at least so long


class AdaptiveLimit:
    """A number between LEAST and MOST that follows throughput and errors.  No I/O, no waiting."""

    def __init__(
        self,
        *,
        least: int = LEAST,
        start: int = START,
        most: int = MOST,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not 1 <= least <= start <= most:
            raise ValueError(f"expected 1 <= least <= start <= most, found {least} {start} {most}")
        self.value = start
        self._least = least
        self._most = most
        self._clock = clock
        self._best = 0.0  # bytes a second, as far as is known
        self.restart()

    def restart(self) -> None:
        """Nothing is under way: what is measured next starts now."""
        self._since = self._clock()
        self._bytes = 0
        self._ranges = 0

    def completed(self, nbytes: int) -> None:
        """A range has arrived."""
        self._bytes += nbytes
        self._ranges += 1
        elapsed_s = self._clock() - self._since
        if self._ranges < self.value or elapsed_s < _WINDOW_S:
            return
        rate = self._bytes / elapsed_s
        if rate > self._best * _GAIN:
            self._set(self.value + max(1, self.value // 4))
        elif rate < self._best * _LOSS:
            self._set(self.value - 1)
        # The best fades, so that a link that got slower is not measured by its past for ever.
        self._best = max(rate, 0.9 * self._best)
        self.restart()

    def failed(self) -> None:
        """A range broke off or was refused for now; several at once count as one."""
        if self._ranges or self._clock() - self._since >= _WINDOW_S:
            self._set(self.value // 2)
            self.restart()

    def _set(self, value: int) -> None:
        self.value = min(max(value, self._least), self._most)


class Slots:
    """Admits as many tasks at one time as the limit says, in the order in which they came.

    For tasks of one event loop; as a context manager it holds one slot.
    """

    def __init__(self, limit: AdaptiveLimit) -> None:
        self.limit = limit
        self._active = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def __aenter__(self) -> None:
        if self._active == 0:
            self.limit.restart()
        if self._active < self.limit.value and not self._waiting:
            self._active += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave()  # the slot came at the same moment
            elif turn in self._waiting:
                self._waiting.remove(turn)
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._leave()

    def _leave(self) -> None:
        self._active -= 1
        while self._waiting and self._active < self.limit.value:
            turn = self._waiting.popleft()
            if not turn.done():
                self._active += 1
                turn.set_result(None)
