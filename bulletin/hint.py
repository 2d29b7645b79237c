"""The hint: where a fresh reader may start.  Mutable, written by anyone, believed by nobody.

Law: `Hint.parse(h.to_bytes()) == h`, and a hint has one spelling.  Whatever it says, a reader that
follows it believes only what is signed, so a wrong one costs requests and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

from skerry.bulletin import keys
from skerry.bulletin.errors import RecordInvalid
from skerry.bulletin.refs import MAX_INT
from skerry.codec.digest import Digest, parse_digest
from skerry.codec.errors import FormatError
from skerry.codec.strict_json import as_int, as_object, canonical, check_fields, parse_json

HINT_LIMIT_BYTES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """Slot and digest of a recent record, and the slot of a recent checkpoint, if there is one."""

    seq: int
    digest: Digest
    checkpoint: int | None

    def to_bytes(self) -> bytes:
        """Return the stored form."""
        return canonical(
            {"seq": self.seq, "digest": self.digest, "checkpoint": self.checkpoint},
        )

    @classmethod
    def parse(cls, data: bytes) -> Hint:
        """Raises RecordInvalid."""
        try:
            fields = as_object(parse_json(data, "hint"), "hint")
            check_fields(fields, "hint", "seq", "digest", "checkpoint")
            seq = as_int(fields["seq"], "seq", 0, MAX_INT)
            at = fields["checkpoint"]
            hint = cls(
                seq=seq,
                digest=parse_digest(fields["digest"]),
                checkpoint=None if at is None else as_int(at, "checkpoint", 0, seq),
            )
            if hint.to_bytes() != data:
                raise FormatError("not in canonical form")
        except FormatError as error:
            raise RecordInvalid(keys.HINT, error.rule) from error
        return hint
