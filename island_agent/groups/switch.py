"""One switch of a group on this agent: its engines go along, up to where the group says stop.

Engines that serve the patch's base are patched: located while they serve, drained, and then held
until all agents are ready; paused, written to, and then held until it is decided.  Others serve
nothing until it is decided: they load the mirror first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from skerry.inference.engine import EngineBroken, InstallFailed, UndoableEngine, WeightUpdate
from skerry.island_agent.fleet import Fleet, check_needs, reads_mirror
from skerry.island_agent.groups.ballots import Round
from skerry.island_agent.groups.source import Source

logger = logging.getLogger(__name__)


@dataclass(eq=False, kw_only=True)
class Switch:
    """`prepared` and `failed` are told how the engines fare, `vote` is awaited when all are paused
    on the new version."""

    round: Round
    engines: Sequence[str]
    fleet: Fleet
    source: Source
    hold_s: float
    prepared: Callable[[], None]
    vote: Callable[[], Awaitable[None]]
    failed: Callable[[str], None]
    after: asyncio.Task[None] | None = None  # the switch before this one
    task: asyncio.Task[None] = field(init=False)

    def __post_init__(self) -> None:
        self._go: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._decided: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._ready: set[str] = set()
        self._installed: set[str] = set()
        self._voted: asyncio.Task[None] | None = None
        self.task = asyncio.create_task(self._run())

    def go(self) -> None:
        """All agents are prepared."""
        _set(self._go, True)

    def decide(self, released: bool) -> None:
        """The group serves the new version from now on, or it stays where it was."""
        _set(self._go, False)
        _set(self._decided, released)

    async def close(self) -> None:
        """The agent ends: engines that are not decided on serve nothing, and run again."""
        self.task.cancel()
        await asyncio.wait({self.task})

    async def _run(self) -> None:
        if self.after is not None:
            await asyncio.wait({self.after})
        there = asyncio.ensure_future(self.source.until_there(self.round.target))
        try:
            await asyncio.wait({there, self._go}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            there.cancel()
        if self._go.done():
            return
        if not there.result():
            self.failed(f"the mirror is at {self.source.serves} already")
            return
        try:
            async with asyncio.TaskGroup() as group:
                for name in self.engines:
                    group.create_task(self._bring(name))
        finally:
            if self._voted is not None and (await asyncio.wait({self._voted}))[0]:
                error = self._voted.exception()
                if error is not None:
                    logger.warning("no vote for %s: %r", self.round.target, error)

    async def _bring(self, name: str) -> None:
        target = self.round.target
        base = self.fleet.gate.view()[name].version
        update = self.source.update_for(name, base, target)

        async def work() -> bool:
            if update is None:
                await self._load(name)
            else:
                await self._patch(name, update)
            return True

        doing = f"group switch to version {target.version}"
        if await self.fleet.guard(name, doing, work) is None and not self._decided.done():
            if update is not None:
                self.source.failed(name)
            error = self.fleet.status.engines[name].error
            self.failed(f"engine {name}: {error}")
        self.fleet.observe()

    async def _patch(self, name: str, update: WeightUpdate) -> None:
        engine: UndoableEngine = self.fleet.engines[name]  # type: ignore[assignment]  # checked at the start

        async def ready() -> None:
            if not await self._all_ready(name):
                raise InstallFailed("the group gave the switch up")

        async def install() -> None:
            async with asyncio.timeout(self.fleet.limit_s):
                await engine.install(update)
                await self.fleet.check(name, update.digest)
            if not await self._outcome(name):
                await engine.undo(update)
                raise InstallFailed("the group stays where it was")

        async with asyncio.timeout(self.fleet.limit_s):
            await engine.stage(update)
        if reads_mirror(engine):
            await self.source.until_held(self.round.target)
        report = await self.fleet.gate.swap(
            name, update.version, install, drain_s=self.fleet.drain_s, ready=ready
        )
        self.fleet.installed(name, update.version, "patch", report.pause_s)

    async def _load(self, name: str) -> None:
        fleet = self.fleet
        if fleet.trust.problem is not None:
            raise InstallFailed(f"the mirror is not to be loaded: {fleet.trust.problem}")
        check_needs(name, fleet.engines[name], fleet.part())

        async def load() -> None:
            async with self.source.reading(self.round.target) as (held, directory):
                await fleet.read_mirror(name, directory, held)
            if not await self._all_ready(name) or not await self._outcome(name):
                raise EngineBroken("the group stays where it was, and this engine is elsewhere")

        report = await fleet.gate.reload(
            name, self.round.target.version, load, drain_s=fleet.drain_s
        )
        fleet.installed(name, self.round.target.version, "load", report.pause_s)

    async def _all_ready(self, name: str) -> bool:
        """Return whether to go on, when everybody is ready."""
        self._ready.add(name)
        if len(self._ready) == len(self.engines):
            self.prepared()
        return await asyncio.shield(self._go)

    async def _outcome(self, name: str) -> bool:
        """Return how the group decided.  Raises EngineBroken when it does not say for too long."""
        self._installed.add(name)
        if len(self._installed) == len(self.engines):
            self._voted = asyncio.ensure_future(self.vote())
        try:
            async with asyncio.timeout(self.hold_s):
                return await asyncio.shield(self._decided)
        except TimeoutError:
            raise EngineBroken(f"no decision of the group for {self.hold_s:g} s") from None


def _set(future: asyncio.Future[bool], value: bool) -> None:
    if not future.done():
        future.set_result(value)
