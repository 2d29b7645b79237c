"""What the newest versions cost their writer: requests by verb, bytes up and down.

For people, in a mutable object that anyone may write: never trusted, and parsed strictly.
Law: `CostLog.parse(c.to_bytes()) == c`, and a log of costs has one spelling.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise, repeat

from skerry.bulletin import keys
from skerry.bulletin.errors import RecordInvalid
from skerry.bulletin.refs import MAX_INT
from skerry.codec.errors import FormatError
from skerry.codec.strict_json import (
    as_int,
    as_list,
    as_object,
    as_text,
    canonical,
    check_fields,
    parse_json,
)

COST_LIMIT_BYTES = 1 << 20
VERSIONS_KEPT = 1000

_VERB = re.compile(r"[a-z_]{1,32}")
_VERBS = 32
_FIELDS = 4  # of a row, before its counts


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionCost:
    """What one version took, from the one before it to its own hint.

    `opened`: the process had just opened the run, and that is in these figures as well.
    """

    version: int
    opened: bool
    requests: Mapping[str, int]
    bytes_up: int
    bytes_down: int

    def to_json(self) -> dict[str, object]:
        return {
            "version": self.version,
            "opened": self.opened,
            "requests": dict(self.requests),
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
        }


@dataclass(frozen=True, slots=True)
class CostLog:
    """The newest versions' costs, oldest first."""

    versions: tuple[VersionCost, ...] = field(default=())

    def append(self, cost: VersionCost) -> CostLog:
        """Return this log with one version more; what is not older than it goes, and the oldest."""
        kept = tuple(old for old in self.versions if old.version < cost.version)
        return CostLog((*kept, cost)[-VERSIONS_KEPT:])

    def to_bytes(self) -> bytes:
        """Return the stored form: a table, a column for each verb."""
        verbs = sorted(set[str]().union(*(cost.requests for cost in self.versions)))
        rows = [
            [
                cost.version,
                int(cost.opened),
                cost.bytes_up,
                cost.bytes_down,
                *map(cost.requests.get, verbs, repeat(0)),
            ]
            for cost in self.versions
        ]
        return canonical({"format": 1, "verbs": verbs, "versions": rows})

    @classmethod
    def parse(cls, data: bytes) -> CostLog:
        """Raises RecordInvalid."""
        try:
            fields = as_object(parse_json(data, "cost"), "cost")
            check_fields(fields, "cost", "format", "verbs", "versions")
            as_int(fields["format"], "format", 1, 1)
            verbs = [as_text(item, "verbs") for item in as_list(fields["verbs"], "verbs")]
            if len(verbs) > _VERBS or not all(_VERB.fullmatch(verb) for verb in verbs):
                raise FormatError(f"verbs: expected at most {_VERBS}, each {_VERB.pattern}")
            rows = as_list(fields["versions"], "versions")
            if len(rows) > VERSIONS_KEPT:
                raise FormatError(f"versions: expected at most {VERSIONS_KEPT}, found {len(rows)}")
            log = cls(tuple(_row(row, verbs) for row in rows))
            if any(b.version <= a.version for a, b in pairwise(log.versions)):
                raise FormatError("versions: expected them in order, each once")
            if log.to_bytes() != data:
                raise FormatError("not in canonical form")
        except FormatError as error:
            raise RecordInvalid(keys.COST, error.rule) from error
        return log


def _row(value: object, verbs: list[str]) -> VersionCost:
    items = as_list(value, "versions")
    if len(items) != _FIELDS + len(verbs):
        raise FormatError(f"versions: expected {_FIELDS + len(verbs)} figures, found {len(items)}")
    figures = [as_int(item, "versions", 0, MAX_INT) for item in items]
    version, opened, up, down = figures[:_FIELDS]
    counts = zip(verbs, figures[_FIELDS:], strict=True)
    return VersionCost(
        version=version,
        opened=as_int(opened, "opened", 0, 1) == 1,
        bytes_up=up,
        bytes_down=down,
        requests={verb: count for verb, count in counts if count},
    )
