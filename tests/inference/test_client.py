"""The client against servers that refuse, break off and lie, each from a script of bytes."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from skerry.inference.client import RolloutClient
from skerry.inference.completion import Completion
from skerry.inference.config import ClientConfig
from skerry.inference.errors import (
    AnswerInvalid,
    ConstraintInvalid,
    EngineUnavailable,
    RequestInvalid,
    Unreachable,
    WeightVersionGone,
    WeightVersionNotReady,
)

SMALL = ClientConfig(retry_budget_s=5.0, backoff_s=0.5, max_answer_bytes=4096, max_event_bytes=1024)


def choice(**changes: object) -> dict[str, object]:
    """Return a sound choice of two tokens, with some fields changed."""
    sound: dict[str, object] = {
        "index": 0,
        "text": "ab",
        "token_ids": [1, 2],
        "logprobs": {"token_logprobs": [-1, -0.5]},
        "finish_reason": "length",
        "weight_versions": [{"version": "5", "start": 0, "end": 2}],
    }
    return {**sound, **changes}


def span(version: object, start: object, end: object) -> dict[str, object]:
    return {"version": version, "start": start, "end": end}


def http(status: int, body: bytes, *headers: str, length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    lines = (f"HTTP/1.1 {status} X", f"Content-Length: {size}", "Connection: close", *headers)
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def answer(*choices: object) -> bytes:
    return http(200, json.dumps({"choices": choices}).encode())


def refusal(status: int, *headers: str) -> bytes:
    error = {"type": "T", "message": "why", "served": ["5"], "newest": "6"}
    return http(status, json.dumps({"error": error}).encode(), *headers)


def events(*values: object, done: bool = True) -> bytes:
    lines = [f"data: {json.dumps(value)}\n\n" for value in values] + ["data: [DONE]\n\n"] * done
    return http(200, "".join(lines).encode())


@asynccontextmanager
async def scripted(
    *answers: bytes,
) -> AsyncIterator[tuple[RolloutClient, list[bytes], list[float]]]:
    """Yield a client of a server that gives `answers` in turn, its requests, and its pauses."""
    left, requests, pauses = list(answers), list[bytes](), list[float]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        requests.append(head + await reader.readexactly(length))
        writer.write(left.pop(0))
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        async with RolloutClient(f"http://127.0.0.1:{port}/", config=SMALL, sleep=sleep) as client:
            yield client, requests, pauses
    finally:
        server.close()
        await server.wait_closed()


def test_what_is_asked_is_what_is_sent() -> None:
    async def body() -> None:
        async with scripted(answer(choice())) as (client, requests, _):
            made = await client.complete(
                "go", accepted="5..;prefer=oldest", wait_s=2.5, max_tokens=2, temperature=0, seed=7
            )
        assert made.choices[0].tokens == (1, 2)
        head, _, data = requests[0].partition(b"\r\n\r\n")
        assert b"X-Accept-Weight-Versions: 5..;prefer=oldest" in head
        assert b"X-Weight-Version-Wait: 2.500s" in head
        assert json.loads(data) == {
            "prompt": "go",
            "max_tokens": 2,
            "temperature": 0,
            "seed": 7,
            "n": 1,
            "logprobs": True,
            "stream": False,
            "ignore_eos": False,
        }

    asyncio.run(body())


def test_not_ready_is_asked_again_after_what_the_server_says() -> None:
    async def body() -> None:
        later, down = refusal(409, "Retry-After: 2"), refusal(503, "Retry-After: 1")
        async with scripted(later, down, answer(choice())) as (client, requests, pauses):
            await client.complete("go")
        assert (len(requests), pauses) == (3, [2.0, 1.0])

    asyncio.run(body())


@pytest.mark.parametrize("retry_after", ["Retry-After: 6", "X-Nothing: 1", "Retry-After: soon"])
def test_beyond_the_budget_or_without_a_time_it_is_the_callers_turn(retry_after: str) -> None:
    async def body() -> None:
        async with scripted(refusal(409, retry_after)) as (client, _, pauses):
            with pytest.raises(WeightVersionNotReady) as error:
                await client.complete("go")
        assert (error.value.served, error.value.newest, pauses) == ((5,), 6, [])

    asyncio.run(body())


def test_coming_back_at_once_uses_up_the_budget_too() -> None:
    async def body() -> None:
        async with scripted(*[refusal(409, "Retry-After: 0")] * 11) as (client, requests, _):
            with pytest.raises(WeightVersionNotReady):
                await client.complete("go")
        assert len(requests) == 11

    asyncio.run(body())


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, RequestInvalid),
        (410, WeightVersionGone),
        (413, RequestInvalid),
        (422, RequestInvalid),
        (500, Unreachable),
        (502, Unreachable),
        (503, EngineUnavailable),
        (302, Unreachable),
    ],
)
def test_every_refusal_is_a_typed_error_that_says_why(status: int, error: type[Exception]) -> None:
    async def body() -> None:
        async with scripted(refusal(status)) as (client, requests, _):
            with pytest.raises(error, match=f"{status}: why"):
                await client.complete("go")
        assert len(requests) == 1

    asyncio.run(body())


def test_a_refused_connection_is_tried_again_with_backoff() -> None:
    async def body() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))  # bound, but nobody listens
            pauses: list[float] = []

            async def sleep(seconds: float) -> None:
                pauses.append(seconds)

            url = f"http://127.0.0.1:{taken.getsockname()[1]}"
            async with RolloutClient(url, config=SMALL, sleep=sleep) as client:
                with pytest.raises(Unreachable, match="cannot connect"):
                    await client.complete("go")
            assert pauses == [0.5, 1.0, 2.0]  # 4 more would exceed the 5 s

    asyncio.run(body())


def test_a_malformed_constraint_is_not_even_sent() -> None:
    async def body() -> None:
        async with scripted() as (client, requests, _):
            with pytest.raises(ConstraintInvalid):
                await client.complete("go", accepted="7..6")
        assert not requests

    asyncio.run(body())


LIES: dict[str, bytes] = {
    "not JSON": http(200, b"<html>"),
    "too deep": http(200, b"[" * 4000),
    "too long": http(200, b" " * 5000),
    "no object": http(200, b"[]"),
    "no choice": answer(),
    "more choices": answer(choice(), choice(index=1)),
    "another index": answer(choice(index=1)),
    "no spans": answer(choice(weight_versions=[])),
    "spans end early": answer(choice(weight_versions=[span("5", 0, 1)])),
    "spans end late": answer(choice(weight_versions=[span("5", 0, 3)])),
    "spans start late": answer(choice(weight_versions=[span("5", 1, 2)])),
    "a gap": answer(choice(weight_versions=[span("5", 0, 0), span("5", 1, 2)])),
    "an empty span": answer(choice(weight_versions=[span("5", 0, 0), span("5", 0, 2)])),
    "an overlap": answer(choice(weight_versions=[span("5", 0, 2), span("6", 1, 2)])),
    "too many spans": answer(choice(weight_versions=[span("5", 0, 1)] * 3)),
    "a version that was not accepted": answer(choice(weight_versions=[span("4", 0, 2)])),
    "part by one": answer(choice(weight_versions=[span("5", 0, 1), span("9", 1, 2)])),
    "a version that is no text": answer(choice(weight_versions=[span(5, 0, 2)])),
    "a version that is no number": answer(choice(weight_versions=[span("v5", 0, 2)])),
    "a huge version": answer(choice(weight_versions=[span("9" * 30, 0, 2)])),
    "a boolean place": answer(choice(weight_versions=[span("5", False, 2)])),
    "too many tokens": answer(choice(token_ids=[1, 2, 3])),
    "a negative token": answer(choice(token_ids=[1, -2])),
    "a token that is no integer": answer(choice(token_ids=[1, 2.0])),
    "fewer log-probabilities": answer(choice(logprobs={"token_logprobs": [-1]})),
    "no log-probabilities": answer(choice(logprobs=None)),
    "a positive log-probability": answer(choice(logprobs={"token_logprobs": [-1, 1]})),
    "an infinite one": answer(choice(logprobs={"token_logprobs": [-1, float("-inf")]})),
    "one that is not a number": answer(choice(logprobs={"token_logprobs": [-1, float("nan")]})),
    "text that is no text": answer(choice(text=None)),
    "an unknown end": answer(choice(finish_reason="maybe")),
    "no end": answer(choice(finish_reason=None)),
    "routed experts that are no base64": answer(choice(routed_experts="AAA")),
    "routed experts that are no text": answer(choice(routed_experts=[1])),
}


@pytest.mark.parametrize("lie", LIES)
def test_an_answer_that_breaks_its_promise_is_refused(lie: str) -> None:
    async def body() -> None:
        async with scripted(LIES[lie]) as (client, _, _):
            with pytest.raises(AnswerInvalid):
                await client.complete("go", accepted="5..8", max_tokens=2)

    asyncio.run(body())


def piece(**changes: object) -> dict[str, object]:
    one = choice(token_ids=[1], logprobs={"token_logprobs": [-1]}, text="a", finish_reason=None)
    del one["weight_versions"]
    return {"choices": [{**one, **changes}]}


def end(*spans: object) -> dict[str, object]:
    last = choice(token_ids=[], logprobs={"token_logprobs": []}, text="")
    return {"choices": [{**last, "weight_versions": list(spans)}]}


async def follow(client: RolloutClient) -> list[object]:
    return [made async for made in client.stream("go", accepted="5..8", max_tokens=2)]


def test_a_stream_ends_with_the_whole() -> None:
    async def body() -> None:
        script = events(piece(), piece(text="b"), end(span("5", 0, 1), span("6", 1, 2)))
        async with scripted(script) as (client, _, _):
            *_, whole = await follow(client)
        assert isinstance(whole, Completion)
        assert (whole.tokens, whole.text, whole.logprobs) == ((1, 1), "ab", (-1.0, -1.0))
        assert [s.version for s in whole.spans] == [5, 6]

    asyncio.run(body())


STREAM_LIES: dict[str, bytes] = {
    "spans over fewer tokens": events(piece(), piece(), end(span("5", 0, 1))),
    "spans outside the accepted": events(piece(), end(span("9", 0, 1))),
    "more tokens than asked": events(piece(), piece(), piece(), end(span("5", 0, 3))),
    "no data line": http(200, b"event: x\n\n"),
    "an endless event": http(200, b"data: " + b"x" * 2000),
    "an endless stream": events(*[piece(text="x" * 900)] * 9),
}


@pytest.mark.parametrize("lie", STREAM_LIES)
def test_a_stream_that_breaks_its_promise_is_refused(lie: str) -> None:
    async def body() -> None:
        async with scripted(STREAM_LIES[lie]) as (client, _, _):
            with pytest.raises(AnswerInvalid):
                await follow(client)

    asyncio.run(body())


async def ask(client: RolloutClient) -> object:
    return await client.complete("go", max_tokens=2)


@pytest.mark.parametrize(
    ("script", "use"),
    [
        (b"", ask),
        (b"HTTP/1.1 200 X\r\n", ask),
        (http(200, b'{"choices"', length=500), ask),
        (events(piece(), done=True), follow),
        (events(piece(), done=False), follow),
        (http(200, b"data: {", length=500), follow),
    ],
)
def test_an_answer_that_breaks_off_is_no_answer(
    script: bytes, use: Callable[[RolloutClient], Awaitable[object]]
) -> None:
    async def body() -> None:
        async with scripted(script) as (client, requests, pauses):
            with pytest.raises(Unreachable):
                await use(client)
        assert (len(requests), pauses) == (1, [])  # it may have been carried out: not sent again

    asyncio.run(body())
