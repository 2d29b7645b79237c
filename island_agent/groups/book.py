"""The record of each group on disk: what an agent has promised, accepted, learned and voted.

    DIR/groups/<group>    sealed canonical JSON, replaced as a whole

A record that was written for other members says nothing to these: the agent starts without one,
serving nothing until the group has decided anew.
"""

from __future__ import annotations

import logging
from pathlib import Path

from skerry.codec.digest import Digest, parse_digest
from skerry.codec.errors import FormatError
from skerry.codec.strict_json import (
    as_int,
    as_object,
    as_text,
    canonical,
    check_fields,
    parse_json,
)
from skerry.island_agent.errors import MirrorDamaged
from skerry.island_agent.files import seal, unseal, write_atomically
from skerry.island_agent.groups.ballots import Ballot, Record, Served

logger = logging.getLogger(__name__)

_MAX_U63 = 2**63 - 1
_FIELDS = ("promised", "accepted", "value", "learned", "serves", "voted")


class Book:
    """The record of one group.  `write` returns when it is durable."""

    def __init__(self, root: Path, group: str, roster: Digest) -> None:
        self._path = root / "groups" / group
        self._roster = roster

    def read(self) -> Record:
        """Raises MirrorDamaged: an agent that has forgotten its vote could serve two versions."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return Record()
        try:
            value = as_object(parse_json(unseal(data, "group"), "group"), "group")
            check_fields(value, "group", "format", "roster", *_FIELDS)
            as_int(value["format"], "format", 1, 1)
            if parse_digest(value["roster"]) != self._roster:
                logger.warning("group %s had other members: its record is not used", self._path)
                return Record()
            return Record(
                promised=_ballot(value["promised"]),
                accepted=_ballot(value["accepted"]),
                value=_served(value["value"]),
                learned=_ballot(value["learned"]),
                serves=_served(value["serves"]),
                voted=_ballot(value["voted"]),
            )
        except FormatError as error:
            raise MirrorDamaged(
                f"{self._path}: {error}: remove it when no agent of the group runs"
            ) from error

    def write(self, record: Record) -> None:
        """Replace the record.  Raises DiskError."""
        if not self._path.parent.exists():
            self._path.parent.mkdir(parents=True, exist_ok=True)
        fields: dict[str, object] = {"format": 1, "roster": self._roster}
        for name in _FIELDS:
            item = getattr(record, name)
            fields[name] = (
                [item.term, item.agent]
                if isinstance(item, Ballot)
                else None
                if item is None
                else [item.version, item.weights]
            )
        write_atomically(self._path, seal(canonical(fields)))


def _pair(value: object, where: str) -> tuple[object, object]:
    if not isinstance(value, list) or len(value) != 2:
        raise FormatError(f"{where}: expected a pair, found {value!r:.80}")
    return value[0], value[1]


def _ballot(value: object) -> Ballot:
    term, agent = _pair(value, "ballot")
    return Ballot(as_int(term, "term", 0, _MAX_U63), as_text(agent, "agent"))


def _served(value: object) -> Served | None:
    if value is None:
        return None
    version, weights = _pair(value, "version")
    return Served(as_int(version, "version", 0, _MAX_U63), parse_digest(weights))
