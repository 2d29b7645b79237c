"""Completions as they are answered: whole, or as events while they are made.

Law: whichever it is, the tokens, log-probabilities and versions of an answer are the same.
"""

from __future__ import annotations

import base64
import json
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

from starlette.responses import JSONResponse, Response

from skerry.inference.attribution import Span
from skerry.inference.constraint import END_HEADER, START_HEADER
from skerry.inference.generation import ABORT, Generation
from skerry.inference.text import TextStream
from skerry.inference.transport import EventStream

DONE = "[DONE]"


def whole_answer(generation: Generation, model: str) -> Response:
    """Answer with a generation that has ended."""
    choices = [
        _choice(
            index=index,
            text=generation.text(choice.tokens),
            tokens=choice.tokens,
            logprobs=choice.logprobs if generation.wants_logprobs else None,
            finish_reason=choice.finish_reason,
            spans=choice.spans(),
            routed_experts=choice.routed_experts,
        )
        for index, choice in enumerate(generation.choices)
    ]
    start, end = generation.bounds()
    return JSONResponse(
        {**_head(model), "choices": choices, **_tail(generation)},
        headers={START_HEADER: str(start), END_HEADER: str(end)},
    )


def streamed_answer(
    generation: Generation, model: str, on_end: Callable[[bool], Awaitable[None]]
) -> Response:
    """Answer with a generation that has made its first token."""
    start, _ = generation.bounds()
    return EventStream(
        _events(generation, model), headers={START_HEADER: str(start)}, on_end=on_end
    )


async def _events(generation: Generation, model: str) -> AsyncIterator[str]:
    """Yield the tokens as they come; the last event says how it ended and what made which token."""
    head = _head(model)
    choice, text = generation.choices[0], TextStream(generation.text)
    with_logprobs = generation.wants_logprobs
    async for start, end in generation.pieces():
        piece = _choice(
            index=0,
            text=text.push(choice.tokens[start:end]),
            tokens=choice.tokens[start:end],
            logprobs=choice.logprobs[start:end] if with_logprobs else None,
            finish_reason=None,
        )
        yield _event(json.dumps({**head, "choices": [piece]}))
    last = _choice(
        index=0,
        text=text.rest(),
        tokens=(),
        logprobs=() if with_logprobs else None,
        finish_reason=choice.finish_reason or ABORT,
        spans=choice.spans(),
        routed_experts=choice.routed_experts,
    )
    yield _event(json.dumps({**head, "choices": [last], **_tail(generation)}))
    yield _event(DONE)


def _choice(
    *,
    index: int,
    text: str,
    tokens: Sequence[int],
    logprobs: Sequence[float] | None,
    finish_reason: str | None,
    spans: Sequence[Span] | None = None,
    routed_experts: bytes | None = None,
) -> dict[str, object]:
    choice: dict[str, object] = {
        "index": index,
        "text": text,
        "token_ids": list(tokens),
        "logprobs": None if logprobs is None else {"token_logprobs": list(logprobs)},
        "finish_reason": finish_reason,
    }
    if spans is not None:
        choice["weight_versions"] = [span.to_json() for span in spans]
    if routed_experts is not None:
        choice["routed_experts"] = base64.b64encode(routed_experts).decode()
    return choice


def _head(model: str) -> dict[str, object]:
    return {
        "id": f"cmpl-{uuid.uuid4().hex}",
        "object": "text_completion",
        "created": int(time.time()),
        "model": model,
    }


def _tail(generation: Generation) -> Mapping[str, object]:
    """Return what is said of the answer as a whole: versions, and the count of tokens."""
    start, end = generation.bounds()
    prompt, output = generation.prompt_tokens, generation.output_tokens
    tail: dict[str, object] = {
        "weight_version_start": str(start),
        "weight_version_end": str(end),
        "usage": {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "total_tokens": prompt + output,
        },
    }
    if len(generation.choices) == 1:
        tail["weight_versions"] = [span.to_json() for span in generation.choices[0].spans()]
    return tail


def _event(data: str) -> str:
    return f"data: {data}\n\n"
