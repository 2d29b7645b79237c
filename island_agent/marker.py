"""The marker: the one small file that says which version a mirror holds.

It names layout and leaf digests by digest, so that replacing it moves everything at once.
`Marker.from_bytes(m.to_bytes()) == m` for every marker.
"""

from __future__ import annotations

from dataclasses import dataclass

from skerry.codec.digest import Digest, parse_digest
from skerry.codec.strict_json import (
    as_int,
    as_object,
    as_text,
    canonical,
    check_fields,
    parse_json,
)
from skerry.island_agent.files import seal, unseal

_MAX_U63 = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A version, and the two digests that fix its directory byte for byte."""

    version: int
    layout: Digest
    weights: Digest

    def to_json(self) -> dict[str, object]:
        return {"version": self.version, "layout": self.layout, "weights": self.weights}

    @classmethod
    def from_json(cls, value: object, where: str) -> Held:
        """Raises FormatError."""
        entry = as_object(value, where)
        check_fields(entry, where, "version", "layout", "weights")
        return cls(
            version=as_int(entry["version"], where, 0, _MAX_U63),
            layout=parse_digest(entry["layout"]),
            weights=parse_digest(entry["weights"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Marker:
    """Which run a mirror follows (digest of log record 0), and what it holds, if anything sound.

    `part` is the selection of a mirror that holds only a part of each version: format 2.
    """

    run: Digest
    held: Held | None
    part: str | None = None

    def to_bytes(self) -> bytes:
        held = None if self.held is None else self.held.to_json()
        fields: dict[str, object] = {"format": 1, "run": self.run, "held": held}
        if self.part is not None:
            fields |= {"format": 2, "part": self.part}
        return seal(canonical(fields))

    @classmethod
    def from_bytes(cls, data: bytes) -> Marker:
        """Parse a stored marker.  Raises FormatError."""
        value = as_object(parse_json(unseal(data, "marker"), "marker"), "marker")
        partial = as_int(value.get("format"), "marker format", 1, 2) == 2
        check_fields(value, "marker", "format", "run", "held", *(["part"] if partial else []))
        held = value["held"]
        return cls(
            run=parse_digest(value["run"]),
            held=None if held is None else Held.from_json(held, "held"),
            part=as_text(value["part"], "part") if partial else None,
        )
