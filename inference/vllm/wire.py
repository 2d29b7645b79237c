"""The bodies of `/skerry/v1`, written and read on both sides.  Needs no vLLM and no torch."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

from skerry.codec.digest import digest_bytes
from skerry.inference.engine import GeneratedToken, GenerationRequest, RequestUnsupported

POLICIES = ("keep", "recompute", "drain", "abort")
_MAX_U63 = 2**63 - 1
_FIELDS = {"prompt", "max_tokens", "temperature", "seed", "ignore_eos"}


class BodyInvalid(ValueError):
    """A body breaks a rule of the wire."""


def parse_object(data: bytes) -> Mapping[str, Any]:
    """Raises BodyInvalid."""
    try:
        value = json.loads(data or b"{}")
    except (ValueError, RecursionError) as error:
        raise BodyInvalid(f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise BodyInvalid("the body is no object")
    return value


def text(body: Mapping[str, Any], name: str, default: str | None = None) -> str:
    value = body.get(name, default)
    if not isinstance(value, str) or "\0" in value or len(value) > 4096:
        raise BodyInvalid(f"{name}: expected text, found {value!r:.80}")
    return value


def whole(body: Mapping[str, Any], name: str) -> int:
    value = body.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MAX_U63:
        raise BodyInvalid(f"{name}: expected a whole number, found {value!r:.80}")
    return value


def seconds(body: Mapping[str, Any], name: str) -> float:
    value = body.get(name)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 86_400:
        raise BodyInvalid(f"{name}: expected seconds, found {value!r:.80}")
    return float(value)


def policy(body: Mapping[str, Any]) -> Any:
    value = body.get("policy")
    if value not in POLICIES:
        raise BodyInvalid(f"policy: expected one of {', '.join(POLICIES)}, found {value!r:.80}")
    return value


def salt(namespace: str, version: int | None, install: str, own: str | None = None) -> str:
    """Return what keeps prefix caches of runs, versions and installs apart, and requests' `own`.

    A request that runs across an install goes on caching behind the salt that it began with; who
    comes back to its version later must not find what other weights have put there.

    vLLM takes at most 128 characters, and no separators of the caches behind it.
    """
    told = json.dumps([namespace, version, install, own]).encode()
    return f"skerry-{version}-{digest_bytes(told)}"


def request_body(request: GenerationRequest) -> dict[str, object]:
    """Return the body of a request.  Raises RequestUnsupported."""
    if request.routed_experts:
        raise RequestUnsupported(
            "return_routed_experts: with vLLM ask /inference/v1/generate, whose answer has them"
        )
    return {
        "prompt": list(request.prompt),
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "seed": request.seed,
        "ignore_eos": request.ignore_eos,
    }


def parse_request(data: bytes) -> GenerationRequest:
    """Raises BodyInvalid, or RequestUnsupported for values that no model can run."""
    body = parse_object(data)
    if set(body) != _FIELDS:
        raise BodyInvalid(f"expected {sorted(_FIELDS)}, found {sorted(body)!r:.200}")
    prompt, temperature, seed = body["prompt"], body["temperature"], body["seed"]
    if not isinstance(prompt, list) or not all(type(token) is int for token in prompt):
        raise BodyInvalid("prompt: expected token ids")
    if type(body["max_tokens"]) is not int or type(body["ignore_eos"]) is not bool:
        raise BodyInvalid("max_tokens and ignore_eos: expected a number and a truth value")
    if seed is not None and type(seed) is not int:
        raise BodyInvalid(f"seed: expected a number or null, found {seed!r:.80}")
    if not isinstance(temperature, int | float) or not math.isfinite(temperature):
        raise BodyInvalid(f"temperature: expected a number, found {temperature!r:.80}")
    if temperature < 0:
        raise RequestUnsupported(f"temperature: expected 0 or more, found {temperature}")
    return GenerationRequest(
        prompt=tuple(prompt),
        max_tokens=body["max_tokens"],
        temperature=float(temperature),
        seed=seed,
        ignore_eos=body["ignore_eos"],
    )


def piece_line(piece: Any) -> str:
    """Write some tokens as one line: [token, log-probability, version] each, and how it ended."""
    made = list(zip(piece.tokens, piece.logprobs, piece.labels, strict=True))
    return json.dumps({"made": made, "finish": piece.finish}) + "\n"


def parse_line(line: bytes) -> list[GeneratedToken]:
    """Read such a line.  Raises BodyInvalid, also for tokens whose label is no version."""
    body = parse_object(line)
    made, finish = body.get("made"), body.get("finish")
    if not isinstance(made, list) or finish not in (None, "stop", "length"):
        raise BodyInvalid(f"expected tokens, found {line[:200]!r}")
    return [
        _token(cast("Sequence[object]", item), finish if index == len(made) - 1 else None)
        for index, item in enumerate(made)
    ]


def _token(item: Sequence[object], finish: str | None) -> GeneratedToken:
    if not isinstance(item, list) or len(item) != 3:
        raise BodyInvalid(f"expected [token, log-probability, version], found {item!r:.80}")
    token, logprob, label = item
    if type(token) is not int or not isinstance(logprob, float):
        raise BodyInvalid(f"expected a token, found {item!r:.80}")
    if not isinstance(label, str) or not label.isascii() or not label.isdigit():
        raise BodyInvalid(f"token {token} was made by weights without a version: {label!r:.40}")
    return GeneratedToken(token=token, logprob=logprob, version=int(label), finish_reason=finish)
