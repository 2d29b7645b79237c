"""Routes of the engines' own API: admitted by version, answered unread, never across a swap."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import aiohttp
import pytest

from skerry.inference.client import RolloutClient
from skerry.inference.config import ServerConfig
from skerry.inference.constraint import VERSIONS_HEADER, WAIT_HEADER
from skerry.inference.engine import EngineError
from skerry.inference.errors import WeightVersionGone
from tests.inference.passing import CHAT, NEW, OLD, TOKENS, Call, Island, passing_island

T = TypeVar("T")
START, END = "X-Weight-Version-Start", "X-Weight-Version-End"
ASKED = {"messages": [{"role": "user", "content": "2+2="}], "tools": [{"type": "function"}]}
TEXT = b'{"id": "x", "choices": [{"message": {"tool_calls": [1]}, "logprobs": {"content": []}}]}'
HELD = 4096


@pytest.fixture
def island(tmp_path: Path) -> Iterator[Island]:
    config = ServerConfig(max_passed_body_bytes=8192, max_held_bytes=HELD)
    with passing_island(tmp_path, config) as island:
        yield island


def run(island: Island, body: Callable[[aiohttp.ClientSession], Awaitable[None]]) -> None:
    async def main() -> None:
        async with aiohttp.ClientSession(island.url) as http:
            await body(http)

    asyncio.run(main())


async def there(island: Island, make: Callable[[], Awaitable[T]]) -> T:
    """Await `make()` in the server's loop."""

    async def within() -> T:
        return await make()

    assert island.loop is not None
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(within(), island.loop))


async def say(island: Island, act: Callable[[], T]) -> T:
    async def within() -> T:
        return act()

    return await there(island, within)


async def feed(island: Island, call: Call, *pieces: bytes | Exception | None) -> None:
    def put() -> None:
        for piece in pieces:
            call.answer.put_nowait(piece)

    await say(island, put)


@pytest.mark.parametrize("route", [CHAT, TOKENS])
def test_a_whole_answer_is_the_engines_own_byte_for_byte(island: Island, route: str) -> None:
    async def body(http: aiohttp.ClientSession) -> None:
        asking = asyncio.create_task(
            http.post(
                route,
                json={**ASKED, "weight_version": {"exact_version": OLD}},
                headers={"X-Request-Id": "r-1", "Cookie": "a=b"},
            )
        )
        call = await there(island, island.a.asked.get)
        assert call.request.route == route
        assert call.request.body == ASKED
        assert call.request.version == OLD
        assert call.request.headers == {"x-request-id": "r-1"}
        await feed(island, call, TEXT[:1], TEXT[1:9], TEXT[9:], None)
        async with await asking as answer:
            assert (answer.status, answer.headers[START], answer.headers[END]) == (200, "5", "5")
            assert await answer.read() == TEXT

    run(island, body)


def test_a_stream_comes_piece_by_piece_and_byte_for_byte(island: Island) -> None:
    async def body(http: aiohttp.ClientSession) -> None:
        island.a.content_type = "text/event-stream; charset=utf-8"
        events = [b'data: {"choices": []}\n\n', b": comment\n", b"\ndata: [DONE]\n\n"]
        asking = asyncio.create_task(http.post(CHAT, json={**ASKED, "stream": True}))
        call = await there(island, island.a.asked.get)
        async with await asking as answer:
            assert answer.headers[START] == answer.headers[END] == "5"
            assert answer.content_type == "text/event-stream"
            for event in events:
                await feed(island, call, event)
                assert await answer.content.readexactly(len(event)) == event
            await feed(island, call, None)
            assert await answer.read() == b""

    run(island, body)


def test_a_swap_waits_for_an_answer_and_the_next_request_for_the_swap(island: Island) -> None:
    """Nobody could tell which tokens came before it, so no answer runs across a swap."""

    async def body(http: aiohttp.ClientSession) -> None:
        await say(island, lambda: island.gate.set_served("b", None))
        first = asyncio.create_task(http.post(CHAT, json=ASKED))
        call = await there(island, island.a.asked.get)
        swap = asyncio.create_task(there(island, lambda: island.swap("a")))
        await there(island, lambda: island.swapping("a"))
        second = asyncio.create_task(http.post(CHAT, json=ASKED))  # accepts both versions
        while not await say(island, lambda: island.gate.waiting):
            await asyncio.sleep(0)
        assert "pause" not in island.a.calls
        await feed(island, call, TEXT, None)
        async with await first as answer:
            assert answer.headers[END] == "5"
            await answer.read()
        await swap
        later = await there(island, island.a.asked.get)
        assert later.request.version == NEW
        await feed(island, later, TEXT, None)
        async with await second as answer:
            assert answer.headers[START] == "6"

    run(island, body)


def test_engines_of_two_versions_answer_for_theirs_and_one_without_the_route_is_not_asked(
    island: Island,
) -> None:
    async def body(http: aiohttp.ClientSession) -> None:
        await there(island, lambda: island.swap("b"))
        for header, engine in (("5", island.a), ("6", island.b), ("5..;prefer=oldest", island.a)):
            asking = asyncio.create_task(
                http.post(CHAT, json=ASKED, headers={VERSIONS_HEADER: header})
            )
            call = await there(island, engine.asked.get)
            await feed(island, call, TEXT, None)
            async with await asking as answer:
                assert answer.status == 200
        await say(island, lambda: island.gate.set_served("a", None))
        for header, status in (("5", 410), ("7", 409), ("x", 400)):
            async with http.post(CHAT, json=ASKED, headers={VERSIONS_HEADER: header}) as answer:
                assert answer.status == status
                assert ("Retry-After" in answer.headers) == (status == 409)
        await say(island, lambda: island.gate.set_served("b", None))
        async with http.post(CHAT, json=ASKED) as answer:
            assert answer.status == 503

    run(island, body)


def test_a_revoked_request_is_told_to_come_back_or_broken_off_but_never_ended_as_if_whole(
    island: Island,
) -> None:
    async def body(http: aiohttp.ClientSession) -> None:
        asking = asyncio.create_task(http.post(CHAT, json=ASKED))
        call = await there(island, island.a.asked.get)
        async with await asking as answer:
            await feed(island, call, b'{"half": ')
            assert await answer.content.readany()
            await there(island, lambda: island.swap("a", drain_s=0.0))
            with pytest.raises(aiohttp.ClientPayloadError):
                await answer.read()
        assert call.ended

    run(island, body)


def test_an_answer_that_breaks_off_in_the_engine_breaks_off_for_the_client(island: Island) -> None:
    async def body(http: aiohttp.ClientSession) -> None:
        asking = asyncio.create_task(http.post(CHAT, json=ASKED))
        call = await there(island, island.a.asked.get)
        await feed(island, call, TEXT[:20], EngineError("gone"))
        async with await asking as answer:
            with pytest.raises(aiohttp.ClientPayloadError):
                await answer.read()
        island.b.refusal = island.a.refusal = EngineError("not there")
        async with http.post(CHAT, json=ASKED) as answer:
            assert answer.status == 503
            assert (await answer.json())["error"]["type"] == "EngineUnavailable"

    run(island, body)


def test_the_engines_own_refusal_is_passed_on_as_it_is_and_claims_no_version(
    island: Island,
) -> None:
    async def body(http: aiohttp.ClientSession) -> None:
        island.a.status = 404
        asking = asyncio.create_task(http.post(CHAT, json=ASKED))
        call = await there(island, island.a.asked.get)
        await feed(island, call, b'{"error": {"message": "no such model"}}', None)
        async with await asking as answer:
            assert (answer.status, START in answer.headers) == (404, False)
            assert await answer.read() == b'{"error": {"message": "no such model"}}'

    run(island, body)


def test_a_client_that_leaves_cancels_its_request(island: Island) -> None:
    async def body(http: aiohttp.ClientSession) -> None:
        asking = asyncio.create_task(http.post(CHAT, json=ASKED))
        call = await there(island, island.a.asked.get)
        (await asking).close()
        while island.gate.view()["a"].running:
            await asyncio.sleep(0)
        assert call.ended

    run(island, body)


def test_what_is_held_for_a_client_that_does_not_read_is_bounded(island: Island) -> None:
    async def body(http: aiohttp.ClientSession) -> None:
        asking = asyncio.create_task(http.post(TOKENS, json=ASKED))
        call = await there(island, island.a.asked.get)
        sent = b'{"routed_experts": "' + b"A" * (64 << 20) + b'"}'
        chunks = [sent[i : i + HELD] for i in range(0, len(sent), HELD)]
        await feed(island, call, *chunks)
        async with await asking as answer:
            # Kernel buffers take some; the rest stays in the engine until the client reads.
            assert await say(island, call.answer.qsize) > 0
            await feed(island, call, None)
            assert (await answer.read()).endswith(sent[1:])

    run(island, body)


def test_a_client_gets_one_accepted_version_and_retries_what_may_be_retried(
    island: Island,
) -> None:
    async def body(http: aiohttp.ClientSession) -> None:
        slept: list[float] = []

        async def sleep(seconds: float) -> None:
            slept.append(seconds)
            await there(island, lambda: island.swap("a"))

        async with RolloutClient(island.url, sleep=sleep) as client:
            asking = asyncio.create_task(client.ask(CHAT, ASKED, accepted="6"))
            call = await there(island, island.a.asked.get)
            await feed(island, call, TEXT, None)
            made = await asking
            assert (made.version, len(slept)) == (NEW, 1)
            said = made.json()
            assert isinstance(said, dict)
            assert said["id"] == "x"
            with pytest.raises(WeightVersionGone):
                await client.ask(CHAT, ASKED, accepted="..4")
            with pytest.raises(ValueError, match="stream"):
                await client.ask(CHAT, {**ASKED, "stream": True})

    run(island, body)


def test_a_body_over_the_limit_or_a_malformed_constraint_reaches_no_engine(island: Island) -> None:
    async def body(http: aiohttp.ClientSession) -> None:
        for request, status in (
            ({"data": b" " * 8193}, 413),
            ({"json": {**ASKED, "weight_version": None}}, 400),
            ({"json": ASKED, "headers": {WAIT_HEADER: "soon"}}, 400),
        ):
            async with http.post(CHAT, **request) as answer:
                assert answer.status == status
        assert island.a.asked.empty()

    run(island, body)
