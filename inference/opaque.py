"""What is read of, and written into, bodies that are otherwise passed on as they are.

Law: an answer that is passed on is the engine's own, byte for byte, behind the bounds that are put
in front; of a request, only the weight versions are taken out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from skerry.inference.errors import RequestInvalid
from skerry.inference.messages import parse_json

# Headers that engines and routers have a use for; cookies and encodings are between two ends.
HEADERS = ("authorization", "x-request-id", "x-session-id", "traceparent", "tracestate")
_FOREIGN_STATE = ("kv_transfer_params", "ec_transfer_params")
_SPACE = b" \t\r\n"


@dataclass(frozen=True, slots=True)
class PassedBody:
    """The body of a request, and what its `weight_version` says, as nothing or one value."""

    fields: Mapping[str, object]
    constraints: Sequence[object]


def read_passed(data: bytes) -> PassedBody:
    """Read a request's body.  Raises RequestInvalid, also for state that another engine made.

    Keys and values from elsewhere have a version, too, and nobody here knows which.
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
    constraints = [fields.pop("weight_version")] if "weight_version" in fields else []
    return PassedBody(fields, constraints)


def _extras(fields: Mapping[str, object]) -> list[Mapping[str, object]]:
    """Return the objects in which vLLM takes such state as well."""
    params = fields.get("sampling_params")
    inner = params.get("extra_args") if isinstance(params, dict) else None
    return [extra for extra in (fields.get("vllm_xargs"), inner) if isinstance(extra, dict)]


class Front:
    """Puts the bounds of the versions in front of an object that comes in pieces."""

    def __init__(self, version: int) -> None:
        self._head = b'{"weight_version_start":"%d","weight_version_end":"%d"' % (version, version)
        self._seen = b""
        self._done = False

    def push(self, piece: bytes) -> bytes:
        """Return what can be sent after `piece`: nothing, until it is known what it begins with."""
        if self._done:
            return piece
        self._seen += piece
        start = self._seen.lstrip(_SPACE)
        rest = start[1:].lstrip(_SPACE)
        if not start or (start[:1] == b"{" and not rest):
            return b""
        self._done = True
        if start[:1] != b"{":
            return self._seen
        return self._head + (b"" if rest[:1] == b"}" else b",") + start[1:]

    def rest(self) -> bytes:
        """Return what was held back, when no more comes."""
        return b"" if self._done else self._seen
