"""Checkpoints: a signed summary of the log up to one slot, so that nobody has to read it all.

Stored form: a header, one line of canonical JSON, then one zstd frame, the summary.  The header
states the summary's digest and is signed by the run's current key; the rotations in it lead there
from the key of slot 0.  The signature is checked before anything else is unpacked or parsed, so
only the key's owner can make a reader allocate.

Unsigned runs have no checkpoints: nothing but the chain from slot 0 binds such a log together.
"""

from __future__ import annotations

from collections.abc import Sequence

from skerry.bulletin import keys, summary
from skerry.bulletin.errors import InvalidKey, RecordInvalid, Tampered, UntrustedKey
from skerry.bulletin.records import Record, Rotate
from skerry.bulletin.refs import MAX_INT
from skerry.bulletin.signing import PublicKey, Signer, parse_signature
from skerry.bulletin.state import LogState
from skerry.codec.compress import compress, decompress
from skerry.codec.digest import digest_bytes, parse_digest
from skerry.codec.errors import FormatError, LimitExceeded
from skerry.codec.strict_json import (
    as_int,
    as_list,
    as_object,
    canonical,
    check_fields,
    parse_json,
)

CHECKPOINT_INTERVAL = 256  # records from one checkpoint to the next
CHECKPOINT_LIMIT_BYTES = 64 * 1024 * 1024  # stored: half a million versions of one pack
HEADER_LIMIT_BYTES = 1 << 20  # a thousand rotations
SUMMARY_LIMIT_BYTES = 256 * 1024 * 1024  # unpacked

_FIELDS = ("format", "run", "seq", "rotations", "summary", "sig")


def make(state: LogState, signer: Signer, *, limit_bytes: int = CHECKPOINT_LIMIT_BYTES) -> bytes:
    """Return the stored form of a checkpoint of `state`.

    Raises LimitExceeded for a log that is too long to be summed up, and ValueError for a signer
    that is not the run's.
    """
    if signer.public_key != state.key:
        raise ValueError(f"the run is signed with {state.key}, not with {signer.public_key}")
    content = summary.summarize(state)
    if len(content) > SUMMARY_LIMIT_BYTES:
        raise LimitExceeded(f"{len(content)} bytes, the limit is {SUMMARY_LIMIT_BYTES}")
    frame = compress(content)
    rest = {
        "format": 1,
        "run": state.run,
        "seq": state.seq,
        "rotations": [record.to_json() for record in state.rotations],
        "summary": digest_bytes(frame),
    }
    header = canonical({**rest, "sig": signer.sign(canonical(rest))})
    data = header + b"\n" + frame
    if len(header) > HEADER_LIMIT_BYTES or len(data) > limit_bytes:
        raise LimitExceeded(f"{len(data)} bytes, {len(header)} of them the header: too long a log")
    return data


def read(data: bytes, start: LogState, *, seq: int) -> LogState:
    """Return the state that the checkpoint of slot `seq` gives; `start` has read slot 0.

    Raises RecordInvalid, Tampered or UntrustedKey; it is of no use then.
    """
    what = keys.checkpoint(seq)
    header, separator, frame = data[: HEADER_LIMIT_BYTES + 1].partition(b"\n")
    if not separator:
        raise RecordInvalid(what, f"expected a header of at most {HEADER_LIMIT_BYTES} bytes")
    frame = data[len(header) + 1 :]
    try:
        rotations, named = _verified(header, start, seq, what)
        if digest_bytes(frame) != named:
            raise Tampered(f"{what} summary", expected=named, found=digest_bytes(frame))
        content = decompress(frame, SUMMARY_LIMIT_BYTES)
    except FormatError as error:
        raise RecordInvalid(what, error.rule) from error
    except InvalidKey as error:
        raise RecordInvalid(what, str(error)) from error
    except UnicodeEncodeError as error:
        raise RecordInvalid(what, "holds a lone surrogate") from error
    state = summary.restore(start, content, rotations=rotations, what=what)
    if state.seq != seq:
        raise RecordInvalid(what, f"sums up the log to slot {state.seq}")
    return state


def _verified(header: bytes, start: LogState, seq: int, what: str) -> tuple[list[Record], str]:
    """Return the rotations and the digest of the summary, which the run's key vouches for."""
    fields = as_object(parse_json(header, "checkpoint"), "checkpoint")
    check_fields(fields, "checkpoint", *_FIELDS)
    as_int(fields["format"], "format", 1, 1)
    run, named = parse_digest(fields["run"]), parse_digest(fields["summary"])
    if run != start.run:
        raise Tampered(f"{what} run", expected=str(start.run), found=run)
    rotations = [
        Record.from_json(item) for item in as_list(fields["rotations"], "checkpoint rotations")
    ]
    key = _led(start.key, rotations, what)
    signature = parse_signature(fields["sig"])
    rest = {name: value for name, value in fields.items() if name != "sig"}
    if canonical(fields) != header:
        raise FormatError("not in canonical form")
    if not key.verifies(canonical(rest), signature):
        raise Tampered(f"{what} sig", expected=f"one by {key}", found=signature)
    if as_int(fields["seq"], "seq", 0, MAX_INT) != seq:
        raise RecordInvalid(what, f"is one of slot {fields['seq']}")
    return rotations, named


def _led(key: PublicKey | None, rotations: Sequence[Record], what: str) -> PublicKey:
    """Return the key that signed rotations lead to from the one of slot 0."""
    if key is None:
        raise UntrustedKey(f"{what} sig", expected="the key of a signed run", found="none")
    before = 0
    for record in rotations:
        if not isinstance(record.body, Rotate) or record.seq <= before:
            raise RecordInvalid(what, "expected rotations in the order of their slots")
        if record.signature is None or not key.verifies(record.payload(), record.signature):
            raise Tampered(f"{what} rotations", expected=f"one by {key}", found=str(record.body))
        key, before = record.body.key, record.seq
    return key
