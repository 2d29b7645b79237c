"""The wire's bodies: the strict model of a request, and what a refusal looks like.

The request is a subset of OpenAI's completions: a field that is not listed is refused, because to
ignore it would be to answer another question.
"""

from __future__ import annotations

import json
import math
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from skerry.inference.config import ServerConfig
from skerry.inference.errors import RequestInvalid, RolloutError, WeightVersionError

TokenId = Annotated[int, Field(ge=0, lt=2**31)]
SEED_LIMIT = 2**63
_SHOWN_ERRORS = 5
_MAX_DIGITS = 20


class CompletionBody(BaseModel):
    """The body of `POST /v1/completions`."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    prompt: str | list[TokenId]
    model: str | None = Field(default=None, max_length=256)
    max_tokens: int = Field(default=16, ge=1)
    temperature: float = Field(default=1.0, ge=0.0, le=100.0, allow_inf_nan=False)
    seed: int | None = Field(default=None, ge=0, lt=SEED_LIMIT)
    n: int = Field(default=1, ge=1)
    logprobs: bool | Annotated[int, Field(ge=0, le=1)] | None = None
    stream: bool = False
    ignore_eos: bool = False
    return_routed_experts: bool = False
    weight_version: object = None

    @property
    def wants_logprobs(self) -> bool:
        """OpenAI's 0 asks for the sampled token's log-probability alone, as 1 and true do here."""
        return self.logprobs is not None and self.logprobs is not False

    @property
    def constraints(self) -> list[object]:
        """The value of `weight_version`, or nothing: an explicit null is a (malformed) value."""
        return [self.weight_version] if "weight_version" in self.model_fields_set else []


def parse_completion(data: bytes, config: ServerConfig) -> CompletionBody:
    """Parse and check a request's body.  Raises RequestInvalid."""
    try:
        body = CompletionBody.model_validate(parse_json(data))
    except ValidationError as error:
        shown = "; ".join(
            f"{'.'.join(map(str, e['loc'])) or 'body'}: {e['msg']}, found {e['input']!r:.60}"
            for e in error.errors(include_url=False)[:_SHOWN_ERRORS]
        )
        raise RequestInvalid(shown, status=422) from None
    for what, found, limit in (
        ("max_tokens", body.max_tokens, config.max_new_tokens),
        ("n", body.n, config.max_choices),
    ):
        if found > limit:
            raise RequestInvalid(f"{what}: expected at most {limit}, found {found}", status=422)
    if body.stream and body.n > 1:
        raise RequestInvalid(f"n: expected 1 with stream, found {body.n}", status=422)
    if body.model not in (None, config.model):
        raise RequestInvalid(f"model: expected {config.model!r}, found {body.model!r}", status=404)
    return body


def error_body(error: RolloutError) -> dict[str, object]:
    """Return the body of an answer that refuses."""
    shown: dict[str, object] = {"type": type(error).__name__, "message": str(error)}
    if isinstance(error, WeightVersionError):
        shown["served"] = [str(version) for version in error.served]
        shown["newest"] = None if error.newest is None else str(error.newest)
    return {"error": shown}


def parse_json(data: bytes) -> object:
    """Read a body, strictly.  Raises RequestInvalid."""
    try:
        return json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_int=_integer,
            parse_float=_real,
            parse_constant=_refuse,
        )
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise RequestInvalid(f"the body is not JSON: {error}") from None
    except RecursionError:
        raise RequestInvalid("the body is nested too deeply") from None


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    names = [name for name, _ in pairs]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise RequestInvalid(f"field {twice!r:.80} is given twice")
    return dict(pairs)


def _integer(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise RequestInvalid(f"an integer of {len(digits)} digits, at most {_MAX_DIGITS}")
    return int(digits)


def _real(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise RequestInvalid(f"{digits:.40} is too large a number")
    return value


def _refuse(constant: str) -> object:
    raise RequestInvalid(f"{constant} is not JSON")
