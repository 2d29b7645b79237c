"""A repair: the right bytes of one damaged part of a mirror, on disk before they are put in place.

    canonical JSON   run, held, file, offset (null: a whole side file)
    newline, then the bytes, then a line with the digest of everything before

It lies in `journal/repair` while the mirror is written, so readers that look find it changing, and
a crash anywhere is finished by doing it again.  `Repair.from_bytes(r.to_bytes()) == r`.
"""

from __future__ import annotations

from dataclasses import dataclass

from skerry.codec.digest import Digest, parse_digest
from skerry.codec.errors import FormatError
from skerry.codec.names import check_name
from skerry.codec.strict_json import (
    as_int,
    as_object,
    as_text,
    canonical,
    check_fields,
    parse_json,
)
from skerry.island_agent.files import seal, unseal
from skerry.island_agent.marker import Held

_MAX_U63 = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """What to write into `file` from `offset` on, of a mirror that holds `held`.

    With `offset` None the bytes are the whole of a side file.
    """

    run: Digest
    held: Held
    file: str
    offset: int | None
    data: bytes

    def to_bytes(self) -> bytes:
        head = {
            "format": 2,
            "run": self.run,
            "held": self.held.to_json(),
            "file": self.file,
            "offset": self.offset,
        }
        return seal(canonical(head) + b"\n" + self.data)

    @classmethod
    def from_bytes(cls, data: bytes) -> Repair:
        """Parse a stored repair.  Raises FormatError."""
        head, newline, content = unseal(data, "repair").partition(b"\n")
        if not newline:
            raise FormatError("repair: no line with what it is")
        value = as_object(parse_json(head, "repair"), "repair")
        check_fields(value, "repair", "format", "run", "held", "file", "offset")
        as_int(value["format"], "repair format", 2, 2)
        offset = value["offset"]
        return cls(
            run=parse_digest(value["run"]),
            held=Held.from_json(value["held"], "repair"),
            file=check_name(as_text(value["file"], "repair")),
            offset=None if offset is None else as_int(offset, "repair offset", 0, _MAX_U63),
            data=content,
        )
