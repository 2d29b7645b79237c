"""Records: the envelope, its canonical bytes, and a strict parser for bytes from anywhere.

Law: `Record.parse(r.to_bytes()) == r` for every valid record, and `Record.parse(b).to_bytes() == b`
for all bytes that are accepted: a record has one spelling.  The digest of a record is that of its
stored bytes; its signature covers the canonical bytes of everything but `sig`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from skerry.bulletin.bodies import BODIES, Body, Commit, Fence, Retire, Rotate, Skip
from skerry.bulletin.errors import InvalidKey, RecordInvalid
from skerry.bulletin.keys import MAX_EPOCH
from skerry.bulletin.refs import MAX_INT, FileRef, Full, ObjectRef
from skerry.bulletin.signing import Signer, parse_signature
from skerry.codec.digest import Digest, digest_bytes, parse_digest
from skerry.codec.errors import FormatError
from skerry.codec.strict_json import (
    as_int,
    as_object,
    as_text,
    canonical,
    check_fields,
    parse_json,
)

__all__ = [
    "RECORD_LIMIT_BYTES",
    "Body",
    "Commit",
    "Fence",
    "FileRef",
    "Full",
    "ObjectRef",
    "Record",
    "Retire",
    "Rotate",
    "Skip",
    "parse_writer",
]

RECORD_LIMIT_BYTES = 1 << 20

_WRITER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,63}")
_NONCE = re.compile(r"[0-9a-f]{32}")
_ENVELOPE = ("seq", "prev", "epoch", "writer", "nonce", "kind", "time", "body", "sig")


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One slot of the log.

    `prev` is the digest of the record before it, None in slot 0.  `time` is the writer's clock in
    milliseconds since 1970, for people to read.  `signature` is None in an unsigned run.
    """

    seq: int
    prev: Digest | None
    epoch: int
    writer: str
    nonce: str
    time: int
    body: Body
    signature: str | None = None

    @property
    def kind(self) -> str:
        return self.body.kind

    @property
    def size(self) -> int:
        """The size in bytes of the stored record."""
        return len(self.to_bytes())

    @property
    def digest(self) -> Digest:
        return digest_bytes(self.to_bytes())

    def payload(self) -> bytes:
        """Return the bytes that the signature covers."""
        return canonical(self._rest())

    def to_bytes(self) -> bytes:
        """Return the stored form."""
        return canonical(self.to_json())

    def to_json(self) -> dict[str, object]:
        return {**self._rest(), "sig": self.signature}

    def signed(self, signer: Signer) -> Record:
        return replace(self, signature=signer.sign(self.payload()))

    @classmethod
    def parse(cls, data: bytes, *, what: str = "record") -> Record:
        """Parse a stored record.  Raises RecordInvalid, which names `what`."""
        if len(data) > RECORD_LIMIT_BYTES:
            rule = f"expected at most {RECORD_LIMIT_BYTES} bytes, found {len(data)}"
            raise RecordInvalid(what, rule)
        try:
            record = cls.from_json(parse_json(data, "record"))
            if record.to_bytes() != data:
                raise FormatError("not in canonical form")
        except FormatError as error:
            raise RecordInvalid(what, error.rule) from error
        except InvalidKey as error:
            raise RecordInvalid(what, str(error)) from error
        return record

    @classmethod
    def from_json(cls, value: object) -> Record:
        """Return a record from its JSON value.  Raises FormatError and InvalidKey."""
        fields = as_object(value, "record")
        check_fields(fields, "record", *_ENVELOPE)
        kind = as_text(fields["kind"], "kind")
        if kind not in BODIES:
            raise FormatError(f"kind: expected one of {sorted(BODIES)}, found {kind!r:.40}")
        return cls(
            seq=as_int(fields["seq"], "seq", 0, MAX_INT),
            prev=None if fields["prev"] is None else parse_digest(fields["prev"]),
            epoch=as_int(fields["epoch"], "epoch", 1, MAX_EPOCH),
            writer=parse_writer(fields["writer"]),
            nonce=_matching(_NONCE, fields["nonce"], "nonce"),
            time=as_int(fields["time"], "time", 0, MAX_INT),
            body=BODIES[kind].from_json(fields["body"]),
            signature=None if fields["sig"] is None else parse_signature(fields["sig"]),
        )

    def _rest(self) -> dict[str, object]:
        return {
            "seq": self.seq,
            "prev": self.prev,
            "epoch": self.epoch,
            "writer": self.writer,
            "nonce": self.nonce,
            "kind": self.kind,
            "time": self.time,
            "body": self.body.to_json(),
        }


def parse_writer(value: object) -> str:
    """Return a writer's name.  Raises FormatError."""
    return _matching(_WRITER, value, "writer")


def _matching(pattern: re.Pattern[str], value: object, where: str) -> str:
    text = as_text(value, where)
    if not pattern.fullmatch(text):
        raise FormatError(f"{where}: expected {pattern.pattern}, found {text!r:.80}")
    return text
