"""When a range that is behind its peers is worth a second request.

Over a link that loses packets most of the ranges of an object arrive in a few round trips, and one
whose last packet or whose connection's first was lost waits for a timer of TCP, several round trips
long.  Another request for what is missing, over a connection that is warm by then, is there before.
"""

from __future__ import annotations

import asyncio
from statistics import median

_LONGER = 1.15  # than the median of its peers,
_AND_S = 0.03  # and so much: what is next to nothing is no reason to ask twice


class Stragglers:
    """The ranges of one object that are read at once, `count` of them.  In one event loop."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._seconds: list[float] = []
        self._most_are_in = asyncio.Event()

    def finished(self, seconds: float) -> None:
        """A range has arrived, after so long."""
        self._seconds.append(seconds)
        if 2 * len(self._seconds) >= self._count:
            self._most_are_in.set()

    async def is_one(self, began: float) -> None:
        """Return as soon as a range that began at that time of the loop's clock is a straggler."""
        await self._most_are_in.wait()
        due = began + _LONGER * median(self._seconds) + _AND_S
        await asyncio.sleep(due - asyncio.get_running_loop().time())
