"""What agents of a group send each other: small, bounded, and believed by nobody unchecked."""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from skerry.codec.digest import Digest
from skerry.codec.errors import FormatError
from skerry.island_agent.groups.ballots import (
    Ballot,
    Command,
    Record,
    Report,
    Round,
    Served,
    Stage,
    Verb,
)

MAX_MESSAGE_BYTES = 16 * 1024

M = TypeVar("M", bound=BaseModel)

_Name = Annotated[str, Field(max_length=64)]
_Hex = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_Whole = Annotated[int, Field(ge=0, le=2**63 - 1, strict=True)]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Ballot(_Model):
    term: _Whole
    agent: _Name

    def read(self) -> Ballot:
        return Ballot(self.term, self.agent)


class _Served(_Model):
    version: _Whole
    weights: _Hex

    def read(self) -> Served:
        return Served(self.version, Digest(self.weights))


class _Record(_Model):
    promised: _Ballot
    accepted: _Ballot
    value: _Served | None
    learned: _Ballot
    serves: _Served | None
    voted: _Ballot

    def read(self) -> Record:
        return Record(
            promised=self.promised.read(),
            accepted=self.accepted.read(),
            value=_read(self.value),
            learned=self.learned.read(),
            serves=_read(self.serves),
            voted=self.voted.read(),
        )


class _Round(_Model):
    ballot: _Ballot
    target: _Served
    stage: Stage
    reason: Annotated[str, Field(max_length=1000)]

    def read(self) -> Round:
        return Round(
            ballot=self.ballot.read(),
            target=self.target.read(),
            stage=self.stage,
            reason=self.reason,
        )


class _Report(_Model):
    record: _Record
    round: _Round | None
    wants: _Served | None


class _Command(_Model):
    roster: _Hex
    verb: Verb
    ballot: _Ballot
    value: _Served | None
    wait_s: Annotated[float, Field(ge=0.0, le=60.0)]


def command_bytes(command: Command, roster: Digest, wait_s: float) -> bytes:
    return (
        _Command(
            roster=roster,
            verb=command.verb,
            ballot=_ballot(command.ballot),
            value=_served(command.value),
            wait_s=wait_s,
        )
        .model_dump_json()
        .encode()
    )


def parse_command(data: bytes) -> tuple[Command, str, float]:
    """Return a command, the digest of the sender's groups, and how long it would wait.

    Raises FormatError.
    """
    body = _parse(_Command, data)
    command = Command(verb=body.verb, ballot=body.ballot.read(), value=_read(body.value))
    return command, body.roster, body.wait_s


def report_bytes(report: Report) -> bytes:
    record, at = report.record, report.round
    told = _Report(
        record=_Record(
            promised=_ballot(record.promised),
            accepted=_ballot(record.accepted),
            value=_served(record.value),
            learned=_ballot(record.learned),
            serves=_served(record.serves),
            voted=_ballot(record.voted),
        ),
        round=None
        if at is None
        else _Round(
            ballot=_ballot(at.ballot),
            target=_Served(version=at.target.version, weights=at.target.weights),
            stage=at.stage,
            reason=at.reason[:1000],
        ),
        wants=_served(report.wants),
    )
    return told.model_dump_json().encode()


def parse_report(data: bytes) -> Report:
    """Raises FormatError."""
    body = _parse(_Report, data)
    at = None if body.round is None else body.round.read()
    return Report(record=body.record.read(), round=at, wants=_read(body.wants))


def _parse(model: type[M], data: bytes) -> M:
    if len(data) > MAX_MESSAGE_BYTES:
        raise FormatError(f"expected at most {MAX_MESSAGE_BYTES} bytes, found {len(data)}")
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise FormatError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def _ballot(ballot: Ballot) -> _Ballot:
    return _Ballot(term=ballot.term, agent=ballot.agent)


def _served(value: Served | None) -> _Served | None:
    return None if value is None else _Served(version=value.version, weights=value.weights)


def _read(value: _Served | None) -> Served | None:
    return None if value is None else value.read()
