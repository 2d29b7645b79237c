"""One agent's part in a group, as a pure state machine.  Nothing here waits, reads or writes.

What the group serves is one register, kept by its agents and written by ballots (single-decree
Paxos that may be rewritten, as in CASPaxos): a decision counts once a quorum has accepted it, and
whoever takes over finds every decision that may count.  On top of it lies one rule: the group goes
to another version only after every agent has voted that its engines are installed, paused on it;
and who has voted serves nothing until it has learned a decision of that ballot or a higher one.

So an agent that has not voted may serve the old version for as long as it likes, cut off or not:
without its vote no other is decided on.  One that has voted is paused, then out of service.  No
clock takes part in this.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum

from skerry.island_agent.groups.ballots import (
    Ballot,
    Command,
    Record,
    Round,
    Served,
    Stage,
    Verb,
)

_UNVOTED = (Stage.PREPARING, Stage.PREPARED, Stage.INSTALLING)


class Do(StrEnum):
    """What the agent has to do to its engines now, after its record is durable."""

    PREPARE = "prepare"
    INSTALL = "install"
    RELEASE = "release"
    UNDO = "undo"


@dataclass(frozen=True, slots=True)
class Effect:
    do: Do
    round: Round


@dataclass(slots=True)
class Member:
    """Changes `record`, which is to be durable before anything else happens, and `round`."""

    record: Record = field(default_factory=Record)
    round: Round | None = None

    @property
    def may_serve(self) -> Served | None:
        """What its engines may be labelled with, when they hold it; None: nothing."""
        return None if self.record.in_doubt else self.record.serves

    def obey(self, command: Command) -> list[Effect]:
        """Take a command; one that came too late changes nothing."""
        ballot = command.ballot
        match command.verb:
            case Verb.CLAIM:
                return self._promise(ballot)
            case Verb.PREPARE if command.value is not None:
                return self._prepare(ballot, command.value)
            case Verb.COMMIT:
                return self._commit(ballot)
            case Verb.ACCEPT:
                return self._accept(ballot, command.value)
            case Verb.LEARN:
                return self.learn(ballot, command.value)
        return []

    def prepared(self, ballot: Ballot) -> None:
        """The engines are ready to be installed."""
        self._move(ballot, Stage.PREPARING, Stage.PREPARED)

    def installed(self, ballot: Ballot) -> bool:
        """The engines are paused on the new version: vote.  Says whether the vote counts."""
        if not self._move(ballot, Stage.INSTALLING, Stage.INSTALLED):
            return False
        self.record = replace(self.record, voted=ballot)
        return True

    def failed(self, ballot: Ballot, reason: str) -> None:
        """The engines could not follow, and are as they were; after a vote it is too late."""
        at = self.round
        if at is not None and at.ballot == ballot and at.stage in _UNVOTED:
            self.round = replace(at, stage=Stage.FAILED, reason=reason)

    def abandon(self) -> list[Effect]:
        """Give up a round in which no vote was given: nobody can have decided for it."""
        at = self.round
        if at is None or at.stage is Stage.INSTALLED:
            return []
        self.round = None
        return [Effect(Do.UNDO, at)]

    def learn(self, ballot: Ballot, value: Served | None) -> list[Effect]:
        """Take over a decision that counts."""
        record, at = self.record, self.round
        if ballot <= record.learned:
            return []
        self.record = record = replace(
            record, learned=ballot, serves=value, promised=max(record.promised, ballot)
        )
        if ballot >= record.accepted:
            self.record = replace(record, accepted=ballot, value=value)
        if at is None or at.ballot > ballot:
            return []
        self.round = None
        released = at.stage is Stage.INSTALLED and value == at.target
        return [Effect(Do.RELEASE if released else Do.UNDO, at)]

    def _promise(self, ballot: Ballot) -> list[Effect]:
        if ballot <= self.record.promised:
            return []
        self.record = replace(self.record, promised=ballot)
        return self.abandon()

    def _prepare(self, ballot: Ballot, target: Served) -> list[Effect]:
        record = self.record
        if ballot != record.promised or ballot <= record.learned or record.in_doubt:
            return []
        if self.round is not None:  # of this ballot: an older one was given up by the claim
            return []
        self.round = Round(ballot=ballot, target=target)
        return [Effect(Do.PREPARE, self.round)]

    def _commit(self, ballot: Ballot) -> list[Effect]:
        if not self._move(ballot, Stage.PREPARED, Stage.INSTALLING):
            return []
        assert self.round is not None
        return [Effect(Do.INSTALL, self.round)]

    def _accept(self, ballot: Ballot, value: Served | None) -> list[Effect]:
        if ballot < self.record.promised:
            return []
        effects = self._promise(ballot)
        self.record = replace(self.record, accepted=ballot, value=value)
        return effects

    def _move(self, ballot: Ballot, of: Stage, to: Stage) -> bool:
        at = self.round
        if at is None or at.ballot != ballot or at.stage is not of:
            return False
        self.round = replace(at, stage=to)
        return True
