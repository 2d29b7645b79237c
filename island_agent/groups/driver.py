"""Drives one group while this agent is the lowest that answers, and listens while it is not."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from skerry.island_agent.errors import PeerLost
from skerry.island_agent.groups.ballots import Command, Report, Verb
from skerry.island_agent.groups.config import GroupTimes
from skerry.island_agent.groups.coordinator import Coordinator, Phase, lessons, plan_for
from skerry.island_agent.groups.member import GroupMember
from skerry.island_agent.hooks import Hook

logger = logging.getLogger(__name__)

_ANSWER_S = 1.0  # how long an agent may keep an answer back until there is news
_AGAIN_S = 0.1  # before an agent that gave none is asked again


class Peers(Protocol):
    """How agents of a group reach each other."""

    async def ask(self, agent: str, group: str, command: Command, wait_s: float) -> Report:
        """Raises PeerLost."""
        ...


class Driver:
    """`run` looks around, again and again; `soon` has it look at once."""

    def __init__(
        self,
        me: str,
        agents: frozenset[str],
        member: GroupMember,
        peers: Peers,
        *,
        times: GroupTimes,
        hook: Hook,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.coordinator = Coordinator(me, agents, on_phase=self._on_phase)
        self.lost: dict[str, str] = {}  # who does not answer, and why
        self._me = me
        self._agents = agents
        self._member = member
        self._peers = peers
        self._times = times
        self._hook = hook
        self._clock = clock
        self._wake = asyncio.Event()
        self._retry_s = times.retry_s

    def soon(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        while True:
            try:
                well = await self._turn()
            except Exception as error:  # the boundary of the group: a disk, a foreign engine
                logger.warning("group %s: %r", self._member.name, error)
                well = False
            if not well:  # whatever it was, each try costs everybody a write to disk
                await asyncio.sleep(self._retry_s)
                self._retry_s = min(2 * self._retry_s, self._times.retry_limit_s)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(self._times.look_s):
                    await self._wake.wait()
            self._wake.clear()

    async def _turn(self) -> bool:
        """Look at everybody, take over what they know, and do what is to be done.

        Returns whether that went well.
        """
        reports = await self._look()
        for agent, command in lessons(reports).items():
            if agent == self._me:
                await self._member.obey(command)
            elif self._me == min(reports):
                await self._ask(agent, command, 0.0)
        if self._me != min(reports):
            await self._member.give_up()
            return True
        reports[self._me] = self._member.report()
        plan = plan_for(reports, self._agents, self._member.wants)
        if plan is None:
            await self._member.give_up()
            return True
        seen = max(report.record.promised for report in reports.values())
        claim = self.coordinator.begin(seen, plan)
        self.coordinator.heard(self._me, Phase.CLAIM, await self._member.obey(claim))
        await self._attempt()
        if self.coordinator.reason:
            logger.warning("group %s: %s", self._member.name, self.coordinator.reason)
            return False
        self._retry_s = self._times.retry_s
        self._wake.set()  # there may be more to do
        return True

    async def _attempt(self) -> None:
        """See an attempt through to its end, whatever that is."""
        asking: dict[asyncio.Task[Report | None], str] = {}
        phase, began = None, 0.0
        try:
            while self.coordinator.phase is not Phase.IDLE:
                if self.coordinator.phase is not phase:
                    phase, began = self.coordinator.phase, self._clock()
                    _drop(asking)
                for agent, command in self.coordinator.tell().items():
                    if agent not in asking.values():
                        asking[asyncio.create_task(self._ask(agent, command, _ANSWER_S))] = agent
                left_s = began + self._limit(phase) - self._clock()
                if left_s <= 0:
                    self.coordinator.expire()
                    continue
                done, _ = await asyncio.wait(
                    asking, timeout=left_s, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done:
                    agent = asking.pop(task)
                    report = task.result()
                    if report is not None:
                        self.coordinator.heard(agent, phase, report)
                    elif self._is_gone(agent, phase, began):
                        self.coordinator.expire()
        finally:
            _drop(asking)
            self.coordinator.phase = Phase.IDLE

    def _is_gone(self, agent: str, phase: Phase, began: float) -> bool:
        """Whether a switch should not wait for an agent any longer that does not answer."""
        silent = self._clock() - began > self._times.reply_s
        return phase in (Phase.PREPARE, Phase.COMMIT) and silent and self._wanted(agent)

    def _wanted(self, agent: str) -> bool:
        return agent in self.coordinator.tell()

    def _limit(self, phase: Phase) -> float:
        match phase:
            case Phase.PREPARE:
                return self._times.prepare_s
            case Phase.COMMIT:
                return self._times.pause_s
        return self._times.reply_s

    async def _look(self) -> dict[str, Report]:
        """Return what everybody says who answers in time; this agent is always among them."""
        others = sorted(self._agents - {self._me})
        answers = await asyncio.gather(
            *(self._ask(agent, Command(verb=Verb.LOOK), 0.0) for agent in others)
        )
        found = {a: r for a, r in zip(others, answers, strict=True) if r is not None}
        return {self._me: self._member.report(), **found}

    async def _ask(self, agent: str, command: Command, wait_s: float) -> Report | None:
        if agent == self._me:
            return await self._member.obey(command, wait_s)
        try:
            async with asyncio.timeout(wait_s + self._times.reply_s):
                report = await self._peers.ask(agent, self._member.name, command, wait_s)
        except (PeerLost, TimeoutError) as error:
            if agent not in self.lost:
                logger.warning("group %s: %s does not answer: %r", self._member.name, agent, error)
            self.lost[agent] = str(error) or "no answer"
            await asyncio.sleep(_AGAIN_S)
            return None
        if self.lost.pop(agent, None) is not None:
            logger.info("group %s: %s answers again", self._member.name, agent)
        return report

    def _on_phase(self, coordinator: Coordinator) -> None:
        logger.info(
            "group %s: phase=%s ballot=%s goal=%s base=%s decision=%s",
            self._member.name, coordinator.phase, coordinator.ballot, coordinator.goal,
            coordinator.base, coordinator.decision,
        )  # fmt: skip
        self._hook(f"group-coordinates-{coordinator.phase}")


def _drop(asking: dict[asyncio.Task[Report | None], str]) -> None:
    for task in asking:
        task.cancel()
    asking.clear()
