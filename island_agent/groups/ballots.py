"""The words of the protocol: ballots, what a group serves, what an agent keeps and says of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from skerry.codec.digest import Digest


@dataclass(frozen=True, slots=True, order=True)
class Ballot:
    """One coordinator's claim to a group.  No two claims are ever equal, and the higher wins."""

    term: int
    agent: str

    def __str__(self) -> str:
        return f"{self.term}/{self.agent}" if self.term else "none"


NO_BALLOT = Ballot(0, "")


@dataclass(frozen=True, slots=True)
class Served:
    """A version, and the digest of its weights: two agents mean the same bytes by it."""

    version: int
    weights: Digest

    def __str__(self) -> str:
        return f"{self.version} ({self.weights[:12]})"


class Stage(StrEnum):
    """How far an agent is in a round."""

    PREPARING = "preparing"  # fetching, verifying, locating; its engines serve as before
    PREPARED = "prepared"  # whoever does not accept the new version has ended
    INSTALLING = "installing"  # its engines pause and are written to
    INSTALLED = "installed"  # paused on the new version; it has promised to serve no other
    FAILED = "failed"  # its engines are as they were before


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What an agent keeps of a group through any crash.

    It has `promised` to obey no lower ballot, has `accepted` the decision `value`, has `learned`
    that the group `serves` something, and has `voted`: in that ballot its engines were installed.
    """

    promised: Ballot = NO_BALLOT
    accepted: Ballot = NO_BALLOT
    value: Served | None = None
    learned: Ballot = NO_BALLOT
    serves: Served | None = None
    voted: Ballot = NO_BALLOT

    @property
    def in_doubt(self) -> bool:
        """Whether the agent has voted for a switch of which it does not know how it ended."""
        return self.voted > self.learned


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """A switch under way, as one agent sees it; `reason` says why it failed."""

    ballot: Ballot
    target: Served
    stage: Stage = Stage.PREPARING
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What an agent answers to whatever it is told about a group."""

    record: Record
    round: Round | None = None
    wants: Served | None = None  # what it would go to: of the coordinator it counts


class Verb(StrEnum):
    """What an agent is told."""

    LOOK = "look"  # nothing: it only answers
    CLAIM = "claim"
    PREPARE = "prepare"
    COMMIT = "commit"
    ACCEPT = "accept"
    LEARN = "learn"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One message of a coordinator.  Repeating it, or sending it too late, does no harm."""

    verb: Verb
    ballot: Ballot = NO_BALLOT
    value: Served | None = None
