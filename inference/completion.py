"""Completions as a client holds them, read from answers that are not trusted.

Laws: a completion's spans cover its tokens exactly, each by an accepted version; there are as many
log-probabilities as tokens, and no more tokens than were asked for.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from skerry.inference.accepted import Constraint
from skerry.inference.attribution import Span
from skerry.inference.errors import (
    AnswerInvalid,
    EngineUnavailable,
    RequestInvalid,
    RolloutError,
    Unreachable,
    WeightVersionError,
    WeightVersionGone,
    WeightVersionNotReady,
)
from skerry.inference.untrusted import as_integer, as_list, as_object, read_spans, version_from

FINISH_REASONS = ("stop", "length", "abort")
MAX_NATS = 1e30  # finite, with room for masked logits
ROUNDING_NATS = 1e-3  # a sum of float32 probabilities may exceed 1
_MAX_TOKEN = 2**31 - 1
_MAX_SERVED = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One sampled continuation, and which version made which of its tokens.

    `routed_experts` are as the engine sent them (`skerry.inference.routed`), None if it did not.
    """

    tokens: tuple[int, ...]
    text: str
    logprobs: tuple[float, ...]
    spans: tuple[Span, ...]
    finish_reason: str
    routed_experts: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Tokens of a completion that is still being made; the text lags behind half characters."""

    tokens: tuple[int, ...]
    text: str
    logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Completion:
    """All choices of one request; the properties are those of the first."""

    choices: tuple[Choice, ...]

    @property
    def tokens(self) -> tuple[int, ...]:
        return self.choices[0].tokens

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def logprobs(self) -> tuple[float, ...]:
        return self.choices[0].logprobs

    @property
    def spans(self) -> tuple[Span, ...]:
        return self.choices[0].spans

    @property
    def finish_reason(self) -> str:
        return self.choices[0].finish_reason

    @property
    def routed_experts(self) -> bytes | None:
        return self.choices[0].routed_experts


def read_completion(data: bytes, constraint: Constraint, *, n: int, max_tokens: int) -> Completion:
    """Read a whole answer.  Raises AnswerInvalid."""
    choices = []
    for index, value in enumerate(_choices(as_object("answer", _json(data)), n)):
        piece = _piece(value, index, max_tokens)
        choices.append(_choice(piece, value, constraint))
    return Completion(tuple(choices))


def read_piece(
    data: bytes, constraint: Constraint, before: Sequence[Piece], *, max_tokens: int
) -> Piece | Completion:
    """Read one event of a stream, given the pieces before it; the last one is a Completion.

    Raises AnswerInvalid.
    """
    (value,) = _choices(as_object("event", _json(data)), 1)
    piece = _piece(value, 0, max_tokens - sum(len(p.tokens) for p in before))
    if "weight_versions" not in value:
        return piece
    pieces = (*before, piece)
    whole = Piece(
        tokens=tuple(token for p in pieces for token in p.tokens),
        text="".join(p.text for p in pieces),
        logprobs=tuple(logprob for p in pieces for logprob in p.logprobs),
    )
    return Completion((_choice(whole, value, constraint),))


def read_refusal(status: int, retry_after: str | None, data: bytes) -> RolloutError:
    """Return the error that an answer stands for; what it says is shown, not believed."""
    try:
        error = as_object("error", as_object("answer", _json(data)).get("error"))
    except AnswerInvalid:
        error = {}
    message = f"{status}: {error.get('message', 'no message')!s:.500}"
    kinds: dict[int, type[WeightVersionError]] = {
        409: WeightVersionNotReady,
        410: WeightVersionGone,
        503: EngineUnavailable,
    }
    if status not in kinds:
        if 400 <= status < 500:
            return RequestInvalid(message, status=status)
        return Unreachable(message)
    served = error.get("served")
    newest = error.get("newest")
    refusal = kinds[status](
        message,
        served=[version_from(v) for v in served[:_MAX_SERVED]] if isinstance(served, list) else (),
        newest=None if newest is None else version_from(newest),
    )
    if isinstance(refusal, WeightVersionNotReady | EngineUnavailable) and retry_after is not None:
        refusal.retry_after_s = _seconds(retry_after)
    return refusal


def _choice(piece: Piece, value: Mapping[str, object], constraint: Constraint) -> Choice:
    reason = value.get("finish_reason")
    if not isinstance(reason, str) or reason not in FINISH_REASONS:
        raise AnswerInvalid(
            f"finish_reason: expected one of {FINISH_REASONS}, found {reason!r:.40}"
        )
    return Choice(
        tokens=piece.tokens,
        text=piece.text,
        logprobs=piece.logprobs,
        spans=_spans(value.get("weight_versions"), len(piece.tokens), constraint),
        finish_reason=reason,
        routed_experts=_base64(value.get("routed_experts")),
    )


def _spans(value: object, tokens: int, constraint: Constraint) -> tuple[Span, ...]:
    spans = read_spans(value, tokens)
    if (spans[-1].end if spans else 0) != tokens:
        raise AnswerInvalid(
            f"weight_versions: expected spans over 0..{tokens}, found {value!r:.120}"
        )
    for span in spans:
        if not constraint.may_contain(span.version):
            raise AnswerInvalid(f"weight_versions: expected {constraint}, found {span.version}")
    return spans


def _piece(value: Mapping[str, object], index: int, max_tokens: int) -> Piece:
    if value.get("index") != index:
        raise AnswerInvalid(f"choice: expected index {index}, found {value.get('index')!r:.40}")
    tokens = as_list("token_ids", value.get("token_ids"), max_tokens)
    logprobs = as_object("logprobs", value.get("logprobs"))
    values = as_list("token_logprobs", logprobs.get("token_logprobs"), len(tokens))
    if len(values) != len(tokens):
        raise AnswerInvalid(f"token_logprobs: expected {len(tokens)} numbers, found {len(values)}")
    text = value.get("text")
    if not isinstance(text, str):
        raise AnswerInvalid(f"text: expected text, found {text!r:.40}")
    return Piece(
        tokens=tuple(as_integer("token id", token, _MAX_TOKEN) for token in tokens),
        text=text,
        logprobs=tuple(map(_logprob, values)),
    )


def _choices(value: Mapping[str, object], n: int) -> list[Mapping[str, object]]:
    choices = as_list("choices", value.get("choices"), n)
    if len(choices) != n:
        raise AnswerInvalid(f"choices: expected {n}, found {len(choices)}")
    return [as_object("choice", choice) for choice in choices]


def _json(data: bytes) -> object:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise AnswerInvalid(f"answer: expected JSON, found {data[:80]!r}: {error}") from None


def _logprob(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise AnswerInvalid(f"log-probability: expected a number, found {value!r:.40}")
    if not -MAX_NATS <= value <= ROUNDING_NATS:
        raise AnswerInvalid(
            f"log-probability: expected a finite number up to 0, found {value!r:.40}"
        )
    return float(value)


def _base64(value: object) -> bytes | None:
    if value is None:
        return None
    try:
        return base64.b64decode(value, validate=True)  # type: ignore[arg-type]
    except (TypeError, ValueError, binascii.Error):
        raise AnswerInvalid(f"routed_experts: expected base64, found {value!r:.40}") from None


def _seconds(text: str) -> float | None:
    """Return a Retry-After in seconds; its other form, a date, is not used by the server."""
    return float(text) if re.fullmatch(r"[0-9]{1,6}", text) else None
