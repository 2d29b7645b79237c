"""One group on this agent: the protocol's state machine, its record on disk, and its engines.

Law: nothing is answered, and no engine touched, before what it follows from is durable.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence

from skerry.inference.slot import Changes
from skerry.island_agent.fleet import Fleet
from skerry.island_agent.groups.ballots import Ballot, Command, Report, Served, Stage, Verb
from skerry.island_agent.groups.book import Book
from skerry.island_agent.groups.config import GroupTimes
from skerry.island_agent.groups.protocol import Do, Effect, Member
from skerry.island_agent.groups.source import Source
from skerry.island_agent.groups.switch import Switch
from skerry.island_agent.hooks import Hook
from skerry.island_agent.marker import Held

logger = logging.getLogger(__name__)

_BUSY = (Stage.PREPARING, Stage.INSTALLING)


class GroupMember:
    """`obey` is for everybody who drives the group, also for this agent itself."""

    def __init__(
        self,
        name: str,
        engines: Sequence[str],
        book: Book,
        *,
        fleet: Fleet,
        source: Source,
        times: GroupTimes,
        hook: Hook,
        nudge: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises MirrorDamaged if the record cannot be read."""
        self.name = name
        self.engines = tuple(engines)
        self._kept = book.read()
        self.state = Member(self._kept)
        self.wants: Served | None = None
        self.heard_at = clock()
        self.moved_at = clock()
        self.outcomes: Counter[str] = Counter()
        self._book = book
        self._fleet = fleet
        self._source = source
        self._times = times
        self._hook = hook
        self._nudge = nudge
        self._clock = clock
        self._changes = Changes()
        self._lock = asyncio.Lock()
        self._switch: Switch | None = None

    def report(self) -> Report:
        """Return what may be said to others: of the record, what is durable."""
        return Report(record=self._kept, round=self.state.round, wants=self.wants)

    def may_load(self, held: Held) -> bool:
        """Whether an engine that serves nothing may load the mirror and serve it."""
        return self.is_at(Served(held.version, held.weights))

    def is_at(self, target: Served) -> bool:
        """Whether the group serves `target`, and nothing is under way here."""
        resting = self._switch is None or self._switch.task.done()
        return resting and self.state.round is None and self.state.may_serve == target

    @property
    def serving(self) -> bool:
        """Whether every engine here serves what the group does."""
        may = self.state.may_serve
        view = self._fleet.gate.view()
        return may is not None and all(view[name].version == may.version for name in self.engines)

    async def obey(self, command: Command, wait_s: float = 0.0) -> Report:
        """Take a command; wait for what it starts, up to `wait_s`.  Raises DiskError."""
        if command.verb is not Verb.LOOK and command.ballot >= self.state.record.promised:
            self.heard_at = self._clock()
        await self._change(lambda: self.state.obey(command), f"group-{command.verb}")
        if command.verb in (Verb.PREPARE, Verb.COMMIT):
            await self._rest(wait_s)
        return self.report()

    async def give_up(self) -> None:
        """End a switch whose coordinator is not heard any more, unless a vote was given."""
        at = self.state.round
        silent_s = self._clock() - self.heard_at
        if at is None or at.stage is Stage.INSTALLED or silent_s < self._times.lost_s:
            return
        logger.warning("group %s: nobody heard for %.1f s, giving up", self.name, silent_s)
        await self._change(self.state.abandon, "group-abandoned")

    async def close(self) -> None:
        if self._switch is not None:
            await self._switch.close()

    async def _change(self, change: Callable[[], list[Effect]], step: str) -> None:
        """Make a change durable, then do what follows from it; whoever asked for it may leave."""
        await asyncio.shield(asyncio.ensure_future(self._change_now(change, step)))

    async def _change_now(self, change: Callable[[], list[Effect]], step: str) -> None:
        async with self._lock:
            record, at = self.state.record, self.state.round
            effects = change()
            if self.state.record != record:
                try:
                    await asyncio.to_thread(self._book.write, self.state.record)
                except Exception:  # then nothing has happened, and nobody is told that it has
                    self.state.record, self.state.round = record, at
                    raise
                self._kept = self.state.record
            if effects or self.state.record != record:
                self._moved()
                self._hook(step)
            for effect in effects:
                self._carry_out(effect)

    def _carry_out(self, effect: Effect) -> None:
        at = effect.round
        logger.info("group %s: %s %s ballot=%s", self.name, effect.do, at.target, at.ballot)
        switch = self._switch
        match effect.do:
            case Do.PREPARE:
                self._switch = self._begin(at.ballot)
                self._nudge()
            case Do.INSTALL if switch is not None:
                switch.go()
            case Do.RELEASE | Do.UNDO:
                self.outcomes["released" if effect.do is Do.RELEASE else "undone"] += 1
                if switch is not None:
                    switch.decide(effect.do is Do.RELEASE)

    def _begin(self, ballot: Ballot) -> Switch:
        def prepared() -> None:
            self.state.prepared(ballot)
            self._moved()
            self._hook("group-prepared")

        def failed(reason: str) -> None:
            logger.warning("group %s: ballot=%s %s", self.name, ballot, reason)
            self.state.failed(ballot, reason)
            self._moved()

        async def vote() -> None:
            def change() -> list[Effect]:
                self.state.installed(ballot)
                return []

            self._hook("group-installed")
            await self._change(change, "group-voted")

        assert self.state.round is not None
        before = self._switch
        switch = Switch(
            round=self.state.round,
            engines=self.engines,
            fleet=self._fleet,
            source=self._source,
            hold_s=self._times.hold_s,
            prepared=prepared,
            vote=vote,
            failed=failed,
            after=None if before is None or before.task.done() else before.task,
        )
        switch.task.add_done_callback(lambda _: self._source.changes.wake())
        return switch

    def _moved(self) -> None:
        self.moved_at = self._clock()
        self._changes.wake()
        self._source.changes.wake()

    async def _rest(self, wait_s: float) -> None:
        """Return when the round gets on, or after `wait_s`."""
        deadline = self._clock() + wait_s
        while (at := self.state.round) is not None and at.stage in _BUSY:
            left_s = deadline - self._clock()
            if left_s <= 0:
                return
            await self._changes.wait(left_s)
