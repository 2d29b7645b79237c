"""A real server and a real client: versions on the wire, swaps under way, clients that leave."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from skerry.inference.attribution import versions_of
from skerry.inference.client import RolloutClient
from skerry.inference.completion import Choice, Completion, Piece
from skerry.inference.config import ClientConfig, ServerConfig
from skerry.inference.constraint import VERSIONS_HEADER, WAIT_HEADER
from skerry.inference.engine import EngineBroken, InstallFailed
from skerry.inference.errors import (
    EngineUnavailable,
    RequestInvalid,
    WeightVersionGone,
    WeightVersionNotReady,
)
from tests.inference.serving import Serving, serving
from tests.inference.stand_in import ROUTED, VOCABULARY, token_of

HUNG = aiohttp.ClientTimeout(total=60)  # far above any answer; only a hung server meets it
NO_RETRY = ClientConfig(retry_budget_s=0.0)
LIMITS = ServerConfig(max_body_bytes=4096, max_prompt_tokens=64, max_new_tokens=64, max_choices=4)


@pytest.fixture
def island(tmp_path: Path) -> Iterator[Serving]:
    with serving(tmp_path, LIMITS) as island:
        yield island


def with_client(island: Serving, body: Callable[[RolloutClient], Awaitable[None]]) -> None:
    async def main() -> None:
        async with RolloutClient(island.url, config=NO_RETRY) as client:
            await body(client)

    asyncio.run(main())


def with_http(island: Serving, body: Callable[[aiohttp.ClientSession], Awaitable[None]]) -> None:
    async def main() -> None:
        async with aiohttp.ClientSession(island.url) as session:
            await body(session)

    asyncio.run(main())


@asynccontextmanager
async def opened(
    client: RolloutClient, *, accepted: str | None = None, max_tokens: int
) -> AsyncIterator[AsyncIterator[Piece | Completion]]:
    stream = client.stream("go", accepted=accepted, max_tokens=max_tokens)
    try:
        yield stream
    finally:
        await stream.aclose()


def check_labels(island: Serving, choice: Choice | Completion) -> None:
    """Prove each label by what only weights of that version would have made."""
    for position, version in enumerate(versions_of(choice.spans)):
        assert choice.tokens[position] == token_of(island.checkpoints.digest(version), position)


J3 = [
    ("5", {"min_version": 5, "max_version": 5}, 200),
    ("3..7", {"min_version": 3, "max_version": 7}, 200),
    ("6..8", {"min_version": 6, "max_version": 8}, 409),
    ("1..4", {"min_version": 1, "max_version": 4}, 410),
    ("7..6", {"min_version": 7, "max_version": 6}, 400),
    ("5..", {"min_version": 5}, 200),
    ("..4", {"max_version": 4}, 410),
    ("-1..x", {"min_version": -1, "max_version": "x"}, 400),
]


def test_j3_ranges_that_no_engine_has_are_answered_and_evict_nobody(island: Serving) -> None:
    async def body(http: aiohttp.ClientSession) -> None:
        for header, constraint, status in J3:
            for request in (
                {"json": {"prompt": "go"}, "headers": {VERSIONS_HEADER: header}},
                {"json": {"prompt": "go", "weight_version": constraint}},
            ):
                async with http.post("/v1/completions", **request) as answer:
                    said = await answer.json()
                    assert answer.status == status, (header, said)
                    assert ("Retry-After" in answer.headers) == (status == 409)
                    if status == 200:
                        assert answer.headers["X-Weight-Version-Start"] == "5"
                        assert answer.headers["X-Weight-Version-End"] == "5"
                        assert said["weight_versions"] == [{"version": "5", "start": 0, "end": 16}]
                    elif status != 400:
                        assert said["error"]["served"] == ["5"]
                        assert said["error"]["newest"] == "5"
        async with http.get("/ready") as answer:
            assert answer.status == 200
            assert await answer.json() == {"ready": True, "served": ["5"]}

    with_http(island, body)


def test_a_completion_carries_tokens_text_and_versions(island: Serving) -> None:
    async def body(client: RolloutClient) -> None:
        made = await client.complete("go", accepted="5", max_tokens=7, temperature=0, seed=1)
        assert (len(made.tokens), made.finish_reason) == (7, "length")
        assert made.text == island.engine.decode(made.tokens)
        assert made.logprobs == (-0.5,) * 7
        check_labels(island, made)
        by_ids = await client.complete(island.engine.encode("go"), max_tokens=7)
        assert by_ids.tokens == made.tokens
        many = await client.complete("go", n=3, max_tokens=2)
        assert [len(choice.tokens) for choice in many.choices] == [2, 2, 2]
        for choice in many.choices:
            check_labels(island, choice)

    with_client(island, body)


def test_routed_experts_come_through_unread_and_only_when_they_are_asked_for(
    island: Serving,
) -> None:
    async def body(client: RolloutClient) -> None:
        made = await client.complete("go", n=2, max_tokens=3, routed_experts=True)
        assert [choice.routed_experts for choice in made.choices] == [ROUTED, ROUTED]
        assert (await client.complete("go", max_tokens=3)).routed_experts is None
        request = {"prompt": "go", "stream": True, "max_tokens": 2, "return_routed_experts": True}
        async with (
            aiohttp.ClientSession(island.url) as http,
            http.post("/v1/completions", json=request) as answer,
        ):
            events = (await answer.text()).split("\n\n")
        said = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
        routed = [event["choices"][0].get("routed_experts") for event in said]
        assert routed[:-1] == [None] * (len(said) - 1)
        assert base64.b64decode(routed[-1]) == ROUTED

    with_client(island, body)


def test_a_stream_runs_through_a_swap_and_gets_two_spans(island: Serving) -> None:
    async def body(client: RolloutClient) -> None:
        await island.say(island.engine.pace)
        await island.say(lambda: island.engine.permit(3))
        async with opened(client, accepted="5..", max_tokens=6) as stream:
            pieces: list[Piece] = []
            while sum(len(p.tokens) for p in pieces) < 3:
                piece = await anext(stream)
                assert isinstance(piece, Piece)
                pieces.append(piece)
            await island.there(lambda: island.swap(6))
            await island.say(lambda: island.engine.permit(3))
            rest = [piece async for piece in stream]
        made = rest[-1]
        assert isinstance(made, Completion)
        assert [s.to_json() for s in made.spans] == [
            {"version": "5", "start": 0, "end": 3},
            {"version": "6", "start": 3, "end": 6},
        ]
        check_labels(island, made)
        assert made.text == island.engine.decode(made.tokens)

    with_client(island, body)


def test_the_last_event_tells_the_end_and_the_first_header_the_start(island: Serving) -> None:
    async def body(http: aiohttp.ClientSession) -> None:
        request = {"prompt": "go", "stream": True, "max_tokens": 2}
        async with http.post("/v1/completions", json=request) as answer:
            assert answer.headers["X-Weight-Version-Start"] == "5"
            assert answer.headers["Content-Type"].startswith("text/event-stream")
            events = (await answer.text()).split("\n\n")
        assert events[-2:] == ["data: [DONE]", ""]
        last = json.loads(events[-3].removeprefix("data: "))
        assert last["weight_version_end"] == "5"
        assert last["weight_versions"] == [{"version": "5", "start": 0, "end": 2}]
        assert last["choices"][0]["finish_reason"] == "length"
        assert last["choices"][0]["logprobs"] is None

    with_http(island, body)


def test_a_pinned_request_is_served_to_its_end_before_the_swap(island: Serving) -> None:
    async def body(client: RolloutClient) -> None:
        await island.say(island.engine.pace)
        pinned = asyncio.create_task(client.complete("go", accepted="5", max_tokens=4))
        await island.there(lambda: island.running(1))
        swapping = asyncio.create_task(island.there(lambda: island.swap(6)))
        await island.there(island.swapping)
        with pytest.raises(WeightVersionNotReady) as later:
            await client.complete("go", accepted="5")
        assert later.value.retry_after_s == 1.0
        waiting = asyncio.create_task(client.complete("go", accepted="6", wait_s=30, max_tokens=1))
        await island.say(lambda: island.engine.permit(5))
        made = await pinned
        assert [s.version for s in made.spans] == [5]
        check_labels(island, made)
        await swapping
        assert [s.version for s in (await waiting).spans] == [6]
        with pytest.raises(WeightVersionGone) as gone:
            await client.complete("go", accepted="5")
        assert gone.value.served == (6,)

    with_client(island, body)


def test_past_the_drain_deadline_an_answer_ends_as_abort_with_true_spans(island: Serving) -> None:
    async def body(client: RolloutClient) -> None:
        await island.say(island.engine.pace)
        whole = asyncio.create_task(client.complete("go", accepted="5", max_tokens=60))
        async with opened(client, accepted="5", max_tokens=60) as stream:
            first = asyncio.ensure_future(anext(stream))
            await island.say(lambda: island.engine.permit_each(3))
            await island.there(lambda: island.engine.made(6))
            await first
            await island.there(lambda: island.swap(6, drain_s=0.0))
            streamed = [piece async for piece in stream][-1]
        assert isinstance(streamed, Completion)
        for made in (await whole, streamed):
            assert made.finish_reason == "abort"
            assert [s.version for s in made.spans] == [5]
            check_labels(island, made)

    with_client(island, body)


def test_a_request_that_is_taken_back_before_its_first_token_may_come_again(
    island: Serving,
) -> None:
    async def body(client: RolloutClient) -> None:
        await island.say(island.engine.pace)

        async def first_piece() -> None:
            await anext(client.stream("go", accepted="5"))

        async def whole() -> None:
            await client.complete("go", accepted="5")

        for ask in (whole, first_piece):
            asking = asyncio.create_task(ask())
            await island.there(lambda: island.running(1))
            await island.say(lambda: island.gate.set_served("engine", 6))
            with pytest.raises(WeightVersionNotReady):
                await asking
            await island.say(lambda: island.gate.set_served("engine", 5))

    with_client(island, body)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("tokens", [0, 2])
def test_a_client_that_leaves_frees_the_engine_and_the_ticket(
    island: Serving, stream: bool, tokens: int
) -> None:
    async def body(client: RolloutClient) -> None:
        await island.say(island.engine.pace)
        await island.say(lambda: island.engine.permit(tokens))

        async def ask() -> None:
            if not stream:
                await client.complete("go", max_tokens=60)
            async for _ in client.stream("go", max_tokens=60):
                pass

        asking = asyncio.create_task(ask())
        await island.there(lambda: island.running(1))
        while island.engine._permits:
            await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await island.there(island.engine.idle)
        await island.there(lambda: island.running(0))

    with_client(island, body)


def test_a_client_that_leaves_while_it_waits_waits_no_more(island: Serving) -> None:
    async def body(client: RolloutClient) -> None:
        async def waiting(count: int) -> None:
            while island.gate.waiting != count:
                await asyncio.sleep(0)

        asking = asyncio.create_task(client.complete("go", accepted="6", wait_s=60))
        await island.there(lambda: waiting(1))
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await island.there(lambda: waiting(0))

    with_client(island, body)


def test_an_engine_that_fails_under_way_ends_its_answer_as_abort(island: Serving) -> None:
    async def body(client: RolloutClient) -> None:
        island.engine.crash_at = 2
        for crash, streams in (
            (EngineBroken("gone"), (False, True)),
            (ValueError("a defect"), (True,)),
        ):
            island.engine.crash = crash
            for stream in streams:
                if stream:
                    made = [piece async for piece in client.stream("go", max_tokens=9)][-1]
                else:
                    made = await client.complete("go", max_tokens=9)
                assert isinstance(made, Completion)
                assert (len(made.tokens), made.finish_reason) == (2, "abort")
                check_labels(island, made)

    with_client(island, body)


def test_an_engine_that_fails_at_once_is_a_status(island: Serving) -> None:
    async def body(http: aiohttp.ClientSession) -> None:
        for crash, status in ((EngineBroken("gone"), 503), (ValueError("a defect"), 500)):
            island.engine.crash = crash
            for stream in (False, True):
                request = {"prompt": "go", "stream": stream}
                async with http.post("/v1/completions", json=request) as answer:
                    assert answer.status == status
                    assert "a defect" not in await answer.text()
        await island.there(lambda: island.running(0))

    with_http(island, body)


def test_what_the_model_cannot_run_is_a_422_that_says_why(island: Serving) -> None:
    async def body(http: aiohttp.ClientSession) -> None:
        for stream in (False, True):
            for n in (1,) if stream else (1, 3):
                request = {"prompt": [1, VOCABULARY], "stream": stream, "n": n}
                async with http.post("/v1/completions", json=request) as answer:
                    assert answer.status == 422
                    assert (await answer.json())["error"] == {
                        "type": "RequestInvalid",
                        "message": f"prompt: expected tokens below {VOCABULARY}",
                    }
        async with http.get("/metrics") as answer:
            assert 'skerry_requests_total{outcome="invalid"} 3.0' in await answer.text()
        await island.there(lambda: island.running(0))

    with_http(island, body)


def test_health_answers_while_a_long_prompt_is_tokenized(island: Serving) -> None:
    async def body(http: aiohttp.ClientSession) -> None:
        engine = island.engine
        engine.encode_may_go_on.clear()
        try:
            made = asyncio.create_task(http.post("/v1/completions", json={"prompt": "go"}))
            await asyncio.to_thread(engine.encode_began.wait)
            async with http.get("/health", timeout=HUNG) as answer:
                assert answer.status == 200
        finally:
            engine.encode_may_go_on.set()
        async with await made as answer:
            assert answer.status == 200

    with_http(island, body)


def test_tokens_of_another_version_than_was_accepted_are_not_passed_on(island: Serving) -> None:
    async def body(client: RolloutClient) -> None:
        await island.say(lambda: island.gate.set_served("engine", 6))  # it is not
        with pytest.raises(EngineUnavailable, match="no token"):
            await client.complete("go", accepted="6")

    with_client(island, body)


BAD_BODIES: list[tuple[bytes, int]] = [
    (b"", 400),
    (b"{", 400),
    (b"\xff", 400),
    (b"[" * 4000, 400),
    (b'{"prompt": "a", "temperature": NaN}', 400),
    (b'{"prompt": "a", "prompt": "b"}', 400),
    (b'{"prompt": "a", "seed": ' + b"9" * 500 + b"}", 400),
    (b'{"prompt": "a", "weight_version": {"min_version": 5, "min_version": 6}}', 400),
    (b'{"prompt": "a", "weight_version": null}', 400),
    (b'{"prompt": "a", "weight_version": {}}', 400),
    (b'{"prompt": "a", "weight_version": {"min": 5}}', 400),
    (b'{"prompt": "a", "weight_version": {"wait_s": 301}}', 400),
    (b"[]", 422),
    (b"{}", 422),
    (b'{"prompt": 1}', 422),
    (b'{"prompt": ""}', 422),
    (b'{"prompt": []}', 422),
    (b'{"prompt": [-1]}', 422),
    (b'{"prompt": [true]}', 422),
    (b'{"prompt": [2147483648]}', 422),
    (b'{"prompt": "' + b"a" * 65 + b'"}', 422),
    (b'{"prompt": "a", "max_tokens": 0}', 422),
    (b'{"prompt": "a", "max_tokens": 65}', 422),
    (b'{"prompt": "a", "max_tokens": "16"}', 422),
    (b'{"prompt": "a", "n": 5}', 422),
    (b'{"prompt": "a", "n": 2, "stream": true}', 422),
    (b'{"prompt": "a", "temperature": -1}', 422),
    (b'{"prompt": "a", "seed": -1}', 422),
    (b'{"prompt": "a", "logprobs": 5}', 422),
    (b'{"prompt": "a", "top_p": 0.5}', 422),
    (b'{"prompt": "a", "return_routed_experts": 1}', 422),
    (b'{"prompt": "a", "model": "other"}', 404),
    (b'{"prompt": "' + b"a" * 5000 + b'"}', 413),
]


def test_what_is_malformed_is_refused_with_its_reason(island: Serving) -> None:
    async def body(http: aiohttp.ClientSession) -> None:
        for data, status in BAD_BODIES:
            async with http.post("/v1/completions", data=data) as answer:
                said = await answer.json()
                assert answer.status == status, (data[:80], said)
                assert said["error"]["message"]
        assert not island.engine.open_requests

    with_http(island, body)


def test_malformed_headers_are_refused(island: Serving) -> None:
    async def body(http: aiohttp.ClientSession) -> None:
        for headers in (
            [(VERSIONS_HEADER, "")],
            [(VERSIONS_HEADER, "five")],
            [(VERSIONS_HEADER, "5"), (VERSIONS_HEADER, "6")],
            [(WAIT_HEADER, "5")],
            [(WAIT_HEADER, "301s")],
        ):
            async with http.post(
                "/v1/completions", json={"prompt": "a"}, headers=headers
            ) as answer:
                said = await answer.json()
                assert answer.status == 400, (headers, said)
                assert said["error"]["type"] == "ConstraintInvalid"

    with_http(island, body)


def test_a_body_of_unknown_length_is_cut_off_at_the_limit(island: Serving) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(5):
            yield b" " * 1024

    async def body(http: aiohttp.ClientSession) -> None:
        async with http.post("/v1/completions", data=endless()) as answer:
            assert answer.status == 413

    with_http(island, body)


def test_a_relative_constraint_is_resolved_against_the_newest_committed(island: Serving) -> None:
    async def body(client: RolloutClient) -> None:
        made = await client.complete("go", accepted="latest-0..", max_tokens=1)
        assert [s.version for s in made.spans] == [5]

    with_client(island, body)


def test_l2_health_answers_while_an_install_hangs_and_status_tells_why(island: Serving) -> None:
    async def body(http: aiohttp.ClientSession) -> None:
        await island.say(island.engine.install_may_go_on.clear)
        swapping = asyncio.create_task(island.there(lambda: island.swap(6)))
        await island.there(island.engine.install_began.wait)
        island.agent = {"phase": "install", "bytes_done": 17}
        for path in ("/health", "/ready", "/metrics", "/v1/models"):
            async with http.get(path) as answer:
                assert answer.status == 200, path
        async with http.get("/status") as answer:
            said = await answer.json()
        assert said["agent"] == {"phase": "install", "bytes_done": 17}
        assert said["engines"]["engine"]["version"] == 5  # J-2: not before it is installed
        assert said["engines"]["engine"]["target"] == 6
        await island.say(island.engine.install_may_go_on.set)
        await swapping

    with_http(island, body)


def test_readiness_tells_the_truth_about_serving(island: Serving) -> None:
    async def body(http: aiohttp.ClientSession) -> None:
        await island.say(lambda: island.gate.set_served("engine", None, error="probe failed"))
        async with http.get("/ready") as answer:
            assert answer.status == 503
        async with http.get("/health") as answer:
            assert answer.status == 200
        async with http.get("/status") as answer:
            assert (await answer.json())["engines"]["engine"]["error"] == "probe failed"
        async with http.post("/v1/completions", json={"prompt": "go"}) as answer:
            assert answer.status == 503
            assert (await answer.json())["error"]["type"] == "EngineUnavailable"

    with_http(island, body)


def test_metrics_count_what_happened(island: Serving) -> None:
    async def body(client: RolloutClient) -> None:
        await client.complete("go", max_tokens=3)
        with pytest.raises(WeightVersionGone):
            await client.complete("go", accepted="4")
        with pytest.raises(WeightVersionNotReady):
            await client.complete("go", accepted="6")
        with pytest.raises(RequestInvalid):
            await client.complete("go", max_tokens=65)
        await island.there(lambda: island.swap(6))
        await island.say(lambda: setattr(island.engine, "fault", "half"))
        with pytest.raises(InstallFailed, match="rank 1"):
            await island.there(lambda: island.swap(7))
        async with (
            aiohttp.ClientSession(island.url) as http,
            http.get("/metrics") as answer,
        ):
            lines = (await answer.text()).splitlines()
        for line in (
            'skerry_requests_total{outcome="completed"} 1.0',
            'skerry_requests_total{outcome="gone"} 1.0',
            'skerry_requests_total{outcome="not_ready"} 1.0',
            'skerry_requests_total{outcome="invalid"} 1.0',
            "skerry_output_tokens_total 3.0",
            'skerry_engine_weight_version{engine="engine"} 6.0',
            'skerry_requests_running{engine="engine"} 0.0',
            "skerry_admission_wait_seconds_count 1.0",
            'skerry_swaps_total{engine="engine",outcome="installed"} 2.0',
            'skerry_swaps_total{engine="engine",outcome="failed"} 1.0',
            'skerry_swap_pause_seconds_count{engine="engine"} 3.0',
        ):
            assert line in lines

    with_client(island, body)


def test_unknown_paths_and_methods_have_the_shape_of_every_error(island: Serving) -> None:
    async def body(http: aiohttp.ClientSession) -> None:
        async with http.get("/nothing") as answer:
            assert answer.status == 404
            assert (await answer.json())["error"]["type"] == "RequestInvalid"
        async with http.get("/v1/completions") as answer:
            assert answer.status == 405

    with_http(island, body)
