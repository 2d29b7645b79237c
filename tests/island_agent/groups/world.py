"""Agents of one group without any IO: their engines are a few variables, their network is a bag."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from skerry.codec.digest import digest_bytes
from skerry.island_agent.groups.ballots import Ballot, Command, Record, Report, Served, Stage, Verb
from skerry.island_agent.groups.coordinator import Coordinator, Phase, lessons, plan_for
from skerry.island_agent.groups.protocol import Do, Effect, Member


def served(version: int) -> Served:
    return Served(version, digest_bytes(str(version).encode()))


@dataclass
class Agent:
    """One agent: what survives it is `disk` and `mirror`.

    Its engine holds a version, is labelled with one or with none, and makes tokens unless paused.
    """

    name: str
    names: tuple[str, ...]
    disk: Record = field(default_factory=Record)
    mirror: Served | None = None
    recorded: Served | None = None  # what the mirror is to become, any time now
    up: bool = True
    member: Member = field(init=False)
    coordinator: Coordinator = field(init=False)
    holds: Served | None = None
    label: Served | None = None
    paused: bool = False
    todo: list[Effect] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        self.member = Member(self.disk)
        self.coordinator = Coordinator(self.name, frozenset(self.names))
        self.holds = self.label = None
        self.paused, self.todo, self.up = False, [], True

    def crash(self) -> None:
        self.up, self.label = False, None

    @property
    def admits(self) -> Served | None:
        """The version that a request would get a token of now."""
        return self.label if self.up and not self.paused else None

    def obey(self, command: Command) -> Report:
        effects = self.member.obey(command)
        self.disk = self.member.record
        for effect in effects:
            self.carry_out(effect)
        return self.report()

    def report(self) -> Report:
        return Report(record=self.member.record, round=self.member.round)

    def carry_out(self, effect: Effect) -> None:
        if effect.do in (Do.PREPARE, Do.INSTALL):
            self.todo.append(effect)
            return
        self.todo = [e for e in self.todo if e.round.ballot != effect.round.ballot]
        if effect.do is Do.RELEASE:
            self.label = effect.round.target if self.holds == effect.round.target else None
        elif self.paused:
            self.holds = self.label
        self.paused = False

    def work(self, index: int, outcome: str) -> None:
        """Do one of the things that take time: it succeeds, fails, or leaves no weights."""
        if not self.todo:
            return
        effect = self.todo.pop(index % len(self.todo))
        ballot, target = effect.round.ballot, effect.round.target
        if outcome == "broken":
            self.holds = self.label = None
        if outcome != "ok":
            self.member.failed(ballot, outcome)
        elif effect.do is Do.PREPARE:
            self.recorded = target
            if self.label is None:
                self.follow()
                self.holds = target
            self.member.prepared(ballot)
        else:
            before, self.holds, self.paused = self.holds, target, True
            if not self.member.installed(ballot):
                self.holds, self.paused = before, False
        self.disk = self.member.record

    def follow(self) -> None:
        """The mirror becomes what is recorded."""
        self.mirror = self.recorded or self.mirror

    def withdraw(self) -> None:
        """It was paused for too long: out of service, so that its engine may run."""
        at = self.member.round
        if at is not None and at.stage is Stage.INSTALLED:
            self.label, self.paused = None, False

    def give_up(self) -> None:
        """Nobody has been heard for long."""
        for effect in self.member.abandon():
            self.carry_out(effect)

    def rejoin(self) -> None:
        """An engine that serves nothing loads the mirror, where that is what the group serves."""
        serves = self.member.may_serve
        if self.label is None and self.member.round is None and serves == self.mirror:
            self.holds = self.label = serves


@dataclass(frozen=True)
class Asked:
    sender: str
    agent: str
    phase: Phase
    command: Command


@dataclass(frozen=True)
class Answered:
    asked: Asked
    report: Report


Message = Asked | Answered


class World:
    """All agents, what is on its way between them, and the version that is wanted."""

    def __init__(self, count: int) -> None:
        self.names = tuple("abcde"[:count])
        self.agents = {name: Agent(name, self.names) for name in self.names}
        self.network: list[Message] = []
        self.wanted = served(0)

    def look(self, among: Sequence[str]) -> dict[str, Report]:
        return {n: self.agents[n].report() for n in among if self.agents[n].up}

    def begin(self, name: str, among: Sequence[str]) -> None:
        agent = self.agents[name]
        if not agent.up or agent.coordinator.phase is not Phase.IDLE:
            return
        reports = self.look({*among, name})  # type: ignore[arg-type]  # any order will do
        plan = plan_for(reports, self.names, self.wanted)
        if plan is not None:
            seen = max(report.record.promised for report in reports.values())
            claim = agent.coordinator.begin(seen, plan)
            report = agent.obey(claim)
            agent.coordinator.heard(name, Phase.CLAIM, report)

    def send(self, name: str) -> None:
        agent = self.agents[name]
        if agent.up:
            for to, command in agent.coordinator.tell().items():
                self.network.append(Asked(name, to, agent.coordinator.phase, command))

    def deliver(self, message: Message) -> None:
        match message:
            case Asked():
                agent = self.agents[message.agent]
                if agent.up:
                    self.network.append(Answered(message, agent.obey(message.command)))
            case Answered():
                asked, sender = message.asked, self.agents[message.asked.sender]
                # A connection does not outlive the attempt that it was opened for.
                if sender.up and sender.coordinator.ballot == asked.command.ballot:
                    sender.coordinator.heard(asked.agent, asked.phase, message.report)

    def gossip(self, among: Sequence[str]) -> None:
        reports = self.look(among)
        for name, command in (lessons(reports) if reports else {}).items():
            self.agents[name].obey(command)

    def check(self) -> None:
        """No two versions are served, and nobody serves what it may not."""
        admitted = {a.name: a.admits for a in self.agents.values() if a.admits is not None}
        assert len(set(admitted.values())) <= 1, f"mixed: {admitted}"
        for name, version in admitted.items():
            agent = self.agents[name]
            assert agent.holds == version, f"{name} holds {agent.holds}, labelled {version}"
            assert agent.member.may_serve == version, f"{name} serves {version} undecided"
            assert agent.disk == agent.member.record

    def heal(self) -> None:
        """Everything is there again: the lowest drives, messages arrive, work succeeds."""
        for agent in self.agents.values():
            if not agent.up:
                agent.start()
        self.network.clear()
        for agent in self.agents.values():
            agent.coordinator.phase = Phase.IDLE
        for _ in range(8):
            self.gossip(self.names)
            self.begin(self.names[0], self.names)
            while self.agents[self.names[0]].coordinator.phase is not Phase.IDLE:
                self.send(self.names[0])
                while self.network:
                    self.deliver(self.network.pop(0))
                    self.check()
                for agent in self.agents.values():
                    agent.work(0, "ok")
                    self.check()
            for agent in self.agents.values():
                agent.follow()
                agent.rejoin()
                self.check()
            if self.is_done():
                return

    def is_done(self) -> bool:
        return all(
            agent.admits == self.wanted and not agent.member.record.in_doubt
            for agent in self.agents.values()
        )


__all__ = ["Agent", "Ballot", "Verb", "World", "served"]
