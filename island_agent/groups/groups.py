"""All groups of one agent, as the agent and its reconcile loop see them.

While an agent is in groups its mirror goes where their coordinator says, and rests there until the
groups have settled: mirrors do not go back, and a patch is at hand only until the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path

from skerry.inference.engine import WeightUpdate
from skerry.island_agent.fleet import Fleet
from skerry.island_agent.groups.ballots import Served, Stage
from skerry.island_agent.groups.book import Book
from skerry.island_agent.groups.config import GroupTimes
from skerry.island_agent.groups.driver import Driver, Peers
from skerry.island_agent.groups.member import GroupMember
from skerry.island_agent.groups.roster import Roster
from skerry.island_agent.groups.shown import GroupStatus
from skerry.island_agent.groups.source import Source
from skerry.island_agent.hooks import Hook
from skerry.island_agent.marker import Held


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """The groups that an agent is in, and how it reaches the others."""

    roster: Roster
    peers: Peers
    times: GroupTimes = field(default_factory=GroupTimes)


class Groups:
    """Made when the agent opens; `run` until cancelled, then `close`."""

    def __init__(
        self,
        membership: Membership,
        me: str,
        *,
        fleet: Fleet,
        root: Path,
        hook: Hook,
        nudge: Callable[[], None],
    ) -> None:
        """Raises MirrorDamaged if a record cannot be read, ValueError for engines that are not
        there or that cannot undo."""
        roster, times = membership.roster, membership.times
        if me not in roster.agents:
            raise ValueError(f"agent {me} is not among its peers {sorted(roster.agents)}")
        self.roster = roster
        self.source = Source()
        self.members: dict[str, GroupMember] = {}
        self.drivers: dict[str, Driver] = {}
        self._me = me
        self._times = times
        self._fleet = fleet
        self._stopping = False
        for name, engines in roster.of(me).items():
            self._check(name, engines)
            member = self.members[name] = GroupMember(
                name,
                engines,
                Book(root, name, roster.digest),
                fleet=fleet,
                source=self.source,
                times=times,
                hook=hook,
                nudge=nudge,
            )
            agents = frozenset(roster.groups[name])
            self.drivers[name] = Driver(
                me, agents, member, membership.peers, times=times, hook=hook
            )

    @property
    def bound(self) -> Mapping[str, Callable[[Held], bool]]:
        """The engines in groups, and whether each may load what the mirror holds."""
        return {
            engine: member.may_load for member in self.members.values() for engine in member.engines
        }

    @property
    def busy(self) -> bool:
        """Whether an engine reads the mirror."""
        return self.source.busy

    @property
    def hungry(self) -> bool:
        """Whether a switch waits for the mirror."""
        rounds = [member.state.round for member in self.members.values()]
        return any(at is not None and at.stage is Stage.PREPARING for at in rounds)

    def turn(self, wants: Served | None, held: Held | None, directory: Path) -> int | None:
        """Say where the mirror is to go now, or to stay; `wants` is where it would go by itself."""
        self.source.moved(held, directory)
        for name, member in self.members.items():
            if wants != member.wants:
                member.wants = wants
                self.drivers[name].soon()
        here = None if held is None else held.version
        targets = [
            member.state.round.target.version
            for member in self.members.values()
            if member.state.round is not None
        ]
        return min((v for v in targets if here is None or v > here), default=here)

    def offer(self, update: WeightUpdate) -> None:
        """Let engines take a patch from its record, which is durable."""
        self.source.offer(update)

    def moved(self, held: Held | None, directory: Path) -> None:
        """Say what the mirror holds."""
        self.source.moved(held, directory)

    def writing(self) -> AbstractAsyncContextManager[None]:
        """Keep engines from the mirror while it changes."""
        return self.source.writing()

    async def settled(self, held: Held) -> bool:
        """Wait for the groups to serve `held`; False when one has given up to come there."""
        target = Served(held.version, held.weights)
        try:
            while not self._stopping:
                behind = [m for m in self.members.values() if not m.is_at(target)]
                if not behind:
                    return True
                latest = max(m.moved_at for m in behind)
                left_s = latest + self._times.patience_s - self._fleet.clock()
                if left_s <= 0:
                    return False
                await self.source.changes.wait(min(left_s, self._times.look_s))
            return False
        finally:
            self.source.offer(None)

    def stop(self) -> None:
        """Have nobody wait for a group any more."""
        self._stopping = True
        self.source.changes.wake()

    async def run(self) -> None:
        """Drive the groups until cancelled."""
        await asyncio.gather(*(driver.run() for driver in self.drivers.values()))

    async def close(self) -> None:
        """End switches under way: who has voted serves nothing until the agent is back."""
        await asyncio.gather(*(member.close() for member in self.members.values()))

    def shown(self) -> dict[str, GroupStatus]:
        """Return how each group fares, at once."""
        return {name: self._shown(name) for name in self.members}

    def _shown(self, name: str) -> GroupStatus:
        member, driver = self.members[name], self.drivers[name]
        record, at = member.state.record, member.state.round
        return GroupStatus(
            engines=member.engines,
            agents=sorted(self.roster.groups[name]),
            version=None if record.serves is None else record.serves.version,
            weights=None if record.serves is None else record.serves.weights,
            in_doubt=record.in_doubt,
            serving=member.serving,
            stage=None if at is None else at.stage.value,
            target=None if at is None else at.target.version,
            coordinator=record.promised.agent or None,
            coordinates=driver.coordinator.phase.value,
            problem=driver.coordinator.reason or None,
            lost=dict(driver.lost),
            released=member.outcomes["released"],
            undone=member.outcomes["undone"],
        )

    def _check(self, group: str, engines: tuple[str, ...]) -> None:
        for name in engines:
            engine = self._fleet.engines.get(name)
            if engine is None:
                raise ValueError(f"group {group}: agent {self._me} has no engine {name}")
            if getattr(engine, "undo", None) is None:
                raise ValueError(
                    f"group {group}: engine {name} cannot take an install back, so that its group "
                    "could not fall back to the old version: it must not be in one"
                )


__all__ = ["Groups", "Membership"]
