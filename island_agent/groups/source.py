"""What engines of groups can be brought to: the mirror, and the record of what led to it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from skerry.inference.engine import WeightUpdate
from skerry.inference.slot import Changes
from skerry.island_agent.groups.ballots import Served
from skerry.island_agent.marker import Held

_PATCH_TRIES = 2  # of one engine, before it loads the mirror instead


class Source:
    """Tells engines what is there, and keeps the mirror still while one of them reads it."""

    def __init__(self) -> None:
        self.changes = Changes()
        self.held: Held | None = None
        self.directory = Path()
        self._update: WeightUpdate | None = None
        self._failures: dict[str, int] = {}
        self._readers = 0
        self._writing = False

    def offer(self, update: WeightUpdate | None) -> None:
        """Let engines take a patch from its record."""
        self._update = update
        self._failures.clear()
        self.changes.wake()

    def moved(self, held: Held | None, directory: Path) -> None:
        """Say what the mirror holds."""
        self.directory = directory
        if held != self.held:
            self.held = held
            self.changes.wake()

    def update_for(self, engine: str, base: int | None, target: Served) -> WeightUpdate | None:
        """Return the patch that leads an engine from `base` to `target`, if it is still at hand."""
        update = self._update
        if update is None or (update.version, update.digest) != (target.version, target.weights):
            return None
        spoiled = self._failures.get(engine, 0) >= _PATCH_TRIES
        return None if base != update.base or spoiled else update

    def failed(self, engine: str) -> None:
        """Note that an engine did not take the patch."""
        self._failures[engine] = self._failures.get(engine, 0) + 1

    async def until_there(self, target: Served) -> bool:
        """Return when `target` can be had, by a patch or from the mirror; False: never any more."""

        def there() -> bool:
            update = self._update
            offered = None if update is None else Served(update.version, update.digest)
            return target in (offered, self.serves)

        def passed() -> bool:
            return self.held is not None and self.held.version > target.version

        await self.until(lambda: there() or passed())
        return there()

    async def until_held(self, target: Served) -> None:
        """Return when the mirror is at `target`."""
        await self.until(lambda: self.serves == target)

    @property
    def serves(self) -> Served | None:
        """What the mirror holds, in the words of a group."""
        return None if self.held is None else Served(self.held.version, self.held.weights)

    @property
    def busy(self) -> bool:
        """Whether an engine reads the mirror."""
        return self._readers > 0

    @asynccontextmanager
    async def reading(self, target: Served) -> AsyncIterator[tuple[Held, Path]]:
        """Hold the mirror still, at `target`."""
        await self.until(lambda: self.serves == target and not self._writing)
        assert self.held is not None
        self._readers += 1
        try:
            yield self.held, self.directory
        finally:
            self._readers -= 1
            self.changes.wake()

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[None]:
        """Keep engines from the mirror while it changes."""
        await self.until(lambda: not self._readers)
        self._writing = True
        try:
            yield
        finally:
            self._writing = False
            self.changes.wake()

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            await self.changes.wait(None)
