"""What is read of, and written into, bodies that are otherwise passed on as they are.

Law: an answer that is passed on is the engine's own, byte for byte, but for what says its versions:
the front of an object, or one event more before the end of a stream.  Of a request, only the weight
versions are taken out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from skerry.inference.attribution import Span
from skerry.inference.errors import RequestInvalid
from skerry.inference.messages import parse_json

# Headers that engines and routers have a use for; cookies and encodings are between two ends.
HEADERS = ("authorization", "x-request-id", "x-session-id", "traceparent", "tracestate")
_FOREIGN_STATE = ("kv_transfer_params", "ec_transfer_params")
_BEGINNING = re.compile(rb"[ \t\r\n]*(?:(?P<brace>\{)[ \t\r\n]*)?")
_DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class PassedBody:
    """The body of a request, and what its `weight_version` says, as nothing or one value."""

    fields: Mapping[str, object]
    constraints: Sequence[object]


def read_passed(data: bytes) -> PassedBody:
    """Read a request's body.  Raises RequestInvalid, also for state that another engine made.

    Keys and values from elsewhere have a version, too, and nobody here knows which.  Nor does
    anybody count the tokens of a beam, of which the engine makes more than it answers with.
    """
    value = parse_json(data)
    if not isinstance(value, dict):
        raise RequestInvalid("the body is no object", status=422)
    fields = dict(value)
    for place in (fields, *_extras(fields)):
        for name in _FOREIGN_STATE:
            if place.get(name) is not None:
                raise RequestInvalid(
                    f"{name}: expected no state of another engine, whose version is not known",
                    status=422,
                )
    if fields.get("use_beam_search"):
        raise RequestInvalid("use_beam_search: no version is told of its tokens", status=422)
    constraints = [fields.pop("weight_version")] if "weight_version" in fields else []
    return PassedBody(fields, constraints)


def _extras(fields: Mapping[str, object]) -> list[Mapping[str, object]]:
    """Return the objects in which vLLM takes such state as well."""
    params = fields.get("sampling_params")
    inner = params.get("extra_args") if isinstance(params, dict) else None
    return [extra for extra in (fields.get("vllm_xargs"), inner) if isinstance(extra, dict)]


def told(version: int, choices: Sequence[Sequence[Span]]) -> dict[str, object]:
    """Return what an answer says of its versions, given the spans of each choice."""
    spans = [[span.to_json() for span in choice] for choice in choices]
    return {
        "weight_version_start": str(version),
        "weight_version_end": str(version),
        **({"weight_versions": spans[0]} if len(spans) == 1 else {"choice_weight_versions": spans}),
    }


class Front:
    """Puts `fields` in front of an object that comes in pieces; other values stay as they are."""

    def __init__(self, fields: Mapping[str, object]) -> None:
        self._head = json.dumps(fields, separators=(",", ":")).encode()[:-1]
        self._seen = b""
        self._done = False

    def push(self, piece: bytes) -> bytes:
        """Return what can be sent after `piece`: nothing, until it is known what it begins with."""
        if self._done:
            return piece
        self._seen += piece
        begun = _BEGINNING.match(self._seen)
        assert begun is not None  # it matches nothing, too
        follows = self._seen[begun.end() : begun.end() + 1]
        if not follows:
            return b""
        self._done = True
        if begun["brace"] is None:
            return self._seen
        comma = b"" if follows == b"}" else b","
        # One copy: answers may be large.
        return b"".join((self._head, comma, memoryview(self._seen)[begun.end("brace") :]))

    def rest(self) -> bytes:
        """Return what was held back, when no more comes."""
        return b"" if self._done else self._seen


def with_event(piece: bytes, fields: Mapping[str, object]) -> bytes:
    """Return the last piece of a stream with one event more before the one that ends it."""
    event = b"data: " + json.dumps(fields, separators=(",", ":")).encode() + b"\n\n"
    return piece[: -len(_DONE)] + event + _DONE


def ends_stream(piece: bytes) -> bool:
    """Say whether a piece of a stream, one of which each event is, has its last event."""
    return piece.endswith(_DONE)
