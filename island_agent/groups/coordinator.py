"""Who drives a group, as a pure state machine: claim, prepare, commit, decide, teach.

Any agent may drive, and two may at a time: the higher ballot wins and the other one stops.  Which
one does is a matter of `lowest`, and of nobody's safety.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from skerry.island_agent.groups.ballots import (
    NO_BALLOT,
    Ballot,
    Command,
    Report,
    Served,
    Stage,
    Verb,
)


class Phase(StrEnum):
    IDLE = "idle"
    CLAIM = "claim"
    PREPARE = "prepare"
    COMMIT = "commit"
    DECIDE = "decide"
    TEACH = "teach"


_VERBS = {
    Phase.CLAIM: Verb.CLAIM,
    Phase.PREPARE: Verb.PREPARE,
    Phase.COMMIT: Verb.COMMIT,
    Phase.DECIDE: Verb.ACCEPT,
    Phase.TEACH: Verb.LEARN,
}


def is_quorum(some: Collection[str], agents: Collection[str]) -> bool:
    """Say whether `some` of the agents decide: more than half, or half with the lowest name.

    Any two quorums share an agent.
    """
    count = 2 * len(some)
    return count > len(agents) or (count == len(agents) and min(agents) in some)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a group needs: a decision taken over (`goal` None), or a switch to `goal`."""

    goal: Served | None


def plan_for(
    reports: Mapping[str, Report], agents: Collection[str], want: Served | None
) -> Plan | None:
    """Say what a coordinator that has these answers should begin; None: nothing."""
    if not is_quorum(reports, agents):
        return None
    records = [report.record for report in reports.values()]
    learned = max(record.learned for record in records)
    open_vote = any(max(record.voted, record.accepted) > learned for record in records)
    if open_vote:
        return Plan(None)
    whole = len(reports) == len(agents) and all(record.learned == learned for record in records)
    if whole and want is not None and want != records[0].serves:
        return Plan(want)
    return None


def lessons(reports: Mapping[str, Report]) -> dict[str, Command]:
    """Return the newest decision that anybody knows of, for those who do not know it.

    A decision that counts may be passed on by anybody.
    """
    newest = max((r.record for r in reports.values()), key=lambda record: record.learned)
    command = Command(verb=Verb.LEARN, ballot=newest.learned, value=newest.serves)
    return {
        agent: command
        for agent, report in reports.items()
        if report.record.learned < newest.learned
    }


@dataclass(slots=True)
class Coordinator:
    """One attempt at a time.  `tell` says what to send, `heard` takes the answers in."""

    me: str
    agents: frozenset[str]
    ballot: Ballot = NO_BALLOT
    phase: Phase = Phase.IDLE
    goal: Served | None = None
    base: Served | None = None  # what the group serves while nothing else is decided
    decision: Served | None = None
    reason: str = ""  # why the attempt does not reach its goal
    answers: dict[str, Report] = field(default_factory=dict)
    on_phase: Callable[[Coordinator], None] = lambda coordinator: None

    def begin(self, seen: Ballot, plan: Plan) -> Command:
        """Start an attempt above every ballot `seen`.

        Returns the claim, which has to be durable here before it is sent to anybody.
        """
        self.ballot = Ballot(seen.term + 1, self.me)
        self.goal, self.base, self.decision, self.reason = plan.goal, None, None, ""
        self._enter(Phase.CLAIM)
        return Command(verb=Verb.CLAIM, ballot=self.ballot)

    def tell(self) -> dict[str, Command]:
        """Return what each agent is to be told now; those that have done their part are left."""
        verb = _VERBS.get(self.phase)
        if verb is None:
            return {}
        value = self.goal if self.phase is Phase.PREPARE else self.decision
        command = Command(verb=verb, ballot=self.ballot, value=value)
        return {agent: command for agent in sorted(self.agents) if not self._done(agent)}

    def heard(self, agent: str, phase: Phase, report: Report) -> None:
        """Take in what an agent answered to what it was told in `phase`."""
        if phase is not self.phase or agent not in self.agents:
            return
        if report.record.promised > self.ballot and self.phase is not Phase.TEACH:
            self._stop(f"{agent} obeys ballot {report.record.promised}")
            return
        self.answers[agent] = report
        self._advance()

    def expire(self) -> None:
        """The time for this phase is over."""
        silent = sorted(a for a in self.agents if not self._done(a))
        why = f"{self.phase} took too long for {', '.join(silent)}"
        match self.phase:
            case Phase.CLAIM if self.goal is None and is_quorum(self._those_done(), self.agents):
                self._take_over()
            case Phase.PREPARE | Phase.COMMIT:
                self._undo(why)
            case Phase.IDLE:
                pass
            case _:
                self._stop(why)

    def _advance(self) -> None:
        done = self._those_done()
        everybody = done == self.agents
        match self.phase:
            case Phase.CLAIM if everybody:
                if self.goal is not None and self._is_settled():
                    self.base = self.answers[self.me].record.serves
                    self._enter(Phase.PREPARE)
                else:
                    self._take_over()
            case Phase.PREPARE | Phase.COMMIT if (why := self._failure()) is not None:
                self._undo(why)
            case Phase.PREPARE if everybody:
                self._enter(Phase.COMMIT)
            case Phase.COMMIT if everybody:
                self.decision = self.goal
                self._enter(Phase.DECIDE)
            case Phase.DECIDE if is_quorum(done, self.agents):
                self._enter(Phase.TEACH)
            case Phase.TEACH if everybody:
                self._enter(Phase.IDLE)

    def _done(self, agent: str) -> bool:
        report = self.answers.get(agent)
        if report is None:
            return False
        record, at = report.record, report.round
        match self.phase:
            case Phase.CLAIM:
                return record.promised == self.ballot
            case Phase.PREPARE:
                return at is not None and at.ballot == self.ballot and at.stage is Stage.PREPARED
            case Phase.COMMIT:
                return record.voted == self.ballot
            case Phase.DECIDE:
                return record.accepted >= self.ballot
            case Phase.TEACH:
                return record.learned >= self.ballot
        return True

    def _those_done(self) -> set[str]:
        return {agent for agent in self.agents if self._done(agent)}

    def _is_settled(self) -> bool:
        """Say whether everybody knows what the group serves, and nothing else may be decided."""
        records = [report.record for report in self.answers.values()]
        first = records[0]
        return all(
            not r.in_doubt and r.learned == r.accepted and r.learned == first.learned
            for r in records
        )

    def _failure(self) -> str | None:
        """Say who cannot follow; None: nobody so far."""
        for agent, report in sorted(self.answers.items()):
            at = report.round
            mine = at is not None and at.ballot == self.ballot
            if at is not None and mine and at.stage is Stage.FAILED:
                return f"{agent}: {at.reason}"
            voted = report.record.voted == self.ballot
            if self.phase is Phase.COMMIT and not mine and not voted:
                return f"{agent} was restarted"
        return None

    def _take_over(self) -> None:
        """Finish what may have been decided before, whatever it was."""
        records = [self.answers[agent].record for agent in self._those_done()]
        self.decision = max(records, key=lambda record: record.accepted).value
        self._enter(Phase.DECIDE)

    def _undo(self, why: str) -> None:
        self.reason, self.decision = why, self.base
        self._enter(Phase.DECIDE)

    def _stop(self, why: str) -> None:
        self.reason = self.reason or why
        self._enter(Phase.IDLE)

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self.answers = {}
        self.on_phase(self)
