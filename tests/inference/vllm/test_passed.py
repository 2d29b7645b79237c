"""vLLM's own chat and token routes through a gate, on a real server, while versions change."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from skerry.inference.client import RolloutClient
from tests.inference.engine_contract import NEW, OLD
from tests.inference.vllm.checkpoints import (
    make_tensors,
    nudged,
    spoken,
    write_model,
)
from tests.inference.vllm.conftest import FIRST, INSTALLS
from tests.inference.vllm.fresh import said_by_fresh_engines
from tests.inference.vllm.installed import require_vllm
from tests.inference.vllm.passed_island import Island, Said, ask, run
from tests.inference.vllm.server import Server

require_vllm()

pytestmark = pytest.mark.timeout(1200)

CHAT, TOKENS = "/v1/chat/completions", "/inference/v1/generate"
NEXT = NEW + 1
STREAMS = 64

_LIGHTS = {
    "type": "object",
    "properties": {
        "on": {"type": "array", "items": {"type": "boolean"}, "minItems": 8, "maxItems": 8}
    },
    "required": ["on"],
    "additionalProperties": False,
}
# Shorter than a block of cache: what follows a cached prefix differs in its last bits.
_SAID = {"messages": [{"role": "user", "content": "hello there"}]}
_FULL = {**_SAID, "logprobs": True, "return_token_ids": True}
_TOOL = {
    **_FULL,
    "max_tokens": 120,
    "temperature": 0.0,
    "tools": [{"type": "function", "function": {"name": "light", "parameters": _LIGHTS}}],
    "tool_choice": {"type": "function", "function": {"name": "light"}},
}
_SAMPLED = {"temperature": 1.0, "seed": 5, "n": 2, "max_tokens": 12}
BODIES: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {**_FULL, "temperature": 0.0, "max_tokens": 16, "ignore_eos": True}),
    (CHAT, {**_FULL, **_SAMPLED, "stream": True}),
    (CHAT, _TOOL),
    (CHAT, {**_TOOL, "stream": True}),
    (
        TOKENS,
        {"token_ids": [5, 6, 7], "sampling_params": {**_SAMPLED, "logprobs": 0}},
    ),
    (
        TOKENS,
        {
            "token_ids": [5, 6, 7],
            "sampling_params": {"temperature": 0.0, "max_tokens": 16, "logprobs": 0},
            "stream": True,
        },
    ),
]


def test_answers_of_each_version_are_those_of_a_fresh_engine(server: Server, places: Path) -> None:
    """Tools, log-probabilities, several choices, streams and objects, on both routes."""
    write_model(places / str(NEXT), "dense", nudged(nudged(make_tensors("dense"), 1), 2))
    versions = (OLD, NEW, NEXT)
    said: dict[int, list[Said]] = {}

    async def body(island: Island, http: aiohttp.ClientSession) -> None:
        await island.load(OLD)
        for base, version in ((None, OLD), (OLD, NEW), (NEW, NEXT)):
            if base is not None:
                await island.install(base, version)
            said[version] = [await ask(http, *request) for request in BODIES]

    run(server, places, body)
    asked = [
        [route, request, one.prompt or request["token_ids"]]
        for (route, request), one in zip(BODIES, said[OLD], strict=True)
    ]
    fresh = said_by_fresh_engines([places / str(version) for version in versions], asked)
    for version, expected in zip(versions, fresh, strict=True):
        assert [one.version for one in said[version]] == [version] * len(BODIES)
        assert [one.choices for one in said[version]] == expected
        for one in said[version]:
            lengths = [len(tokens) for tokens, _ in one.choices]
            assert one.spans == [
                [{"version": str(version), "start": 0, "end": length}] for length in lengths
            ]
        assert all(one.calls for one in said[version][2:4])
    assert fresh[0] != fresh[1] != fresh[2]


def test_no_passed_request_is_lost_or_labelled_wrongly_across_ten_installs(
    server: Server, places: Path
) -> None:
    """Each token says which weights made it."""

    async def body(island: Island, http: aiohttp.ClientSession) -> None:
        made: list[Said] = []
        done = asyncio.Event()
        changed = asyncio.Event()

        async def requests(number: int) -> None:
            route, request = _long(number)
            while not done.is_set():
                served = island.gate.served()[0]
                accepted = "0.." if number % 4 else f"{served}..{served + 1}"
                made.append(await ask(http, route, request, accepted))
                changed.set()

        async def more(answers: int) -> None:
            goal = len(made) + answers
            while len(made) < goal:
                changed.clear()
                await changed.wait()

        await island.load(FIRST)
        async with asyncio.TaskGroup() as group:
            for number in range(STREAMS):
                group.create_task(requests(number))
            for version in range(FIRST + 1, FIRST + INSTALLS + 1):
                await more(STREAMS // 4)
                await island.install(version - 1, version)
            await more(STREAMS)
            done.set()
        assert {one.version for one in made} == set(range(FIRST, FIRST + INSTALLS + 1))
        for one in made:
            for (tokens, _), spans in zip(one.choices, one.spans, strict=True):
                assert set(tokens) == {spoken(one.version)}
                assert spans == [{"version": str(one.version), "start": 0, "end": len(tokens)}]

    run(server, places, body)


def _long(number: int) -> tuple[str, dict[str, Any]]:
    stream = {"stream": number % 2 == 1}
    if number % 3:
        return CHAT, {**_FULL, **stream, "temperature": 0.0, "max_tokens": 24}
    params = {"temperature": 0.0, "max_tokens": 24}
    return TOKENS, {"token_ids": [1, 2, 3], "sampling_params": params, **stream}


def test_a_client_reads_spans_and_what_the_engine_refuses_is_its_own(
    server: Server, places: Path
) -> None:
    async def body(island: Island, http: aiohttp.ClientSession) -> None:
        await island.load(OLD)
        async with RolloutClient(island.url) as client:
            said = await client.ask(CHAT, {**_SAID, "max_tokens": 3, "ignore_eos": True})
        assert [(s.version, s.start, s.end) for s in said.spans()[0]] == [(OLD, 0, 3)]
        for request, status in (
            ({"messages": "none"}, 400),
            ({**_SAID, "model": "other"}, 404),
            ({**_SAID, "use_beam_search": True}, 422),
        ):
            async with http.post(CHAT, json=request) as answer:
                assert answer.status == status
                assert "X-Weight-Version-Start" not in answer.headers

    run(server, places, body)
