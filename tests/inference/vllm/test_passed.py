"""vLLM's own chat and token routes through a gate, on a real server, while versions change."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from skerry.inference import AdmissionGate, KnownVersions
from skerry.inference.client import RolloutClient
from skerry.inference.constraint import VERSIONS_HEADER
from skerry.inference.engines import VllmEngine
from skerry.inference.server import create_app
from tests.inference.checkpoints import read_checkpoint, update_between
from tests.inference.engine_contract import NEW, OLD
from tests.inference.serving import serve
from tests.inference.vllm.checkpoints import make_tensors, nudged, spoken, write_model
from tests.inference.vllm.conftest import FIRST, INSTALLS
from tests.inference.vllm.fresh import said_by_fresh_engines
from tests.inference.vllm.installed import require_vllm
from tests.inference.vllm.server import Server

require_vllm()

pytestmark = pytest.mark.timeout(1200)

CHAT, TOKENS = "/v1/chat/completions", "/inference/v1/generate"
NEXT = NEW + 1
STREAMS = 64

_SWITCH = {
    "type": "object",
    "properties": {"on": {"type": "boolean"}},
    "required": ["on"],
    "additionalProperties": False,
}
# Shorter than a block of cache: what follows a cached prefix differs in its last bits.
_SAID = {"messages": [{"role": "user", "content": "hello there"}]}
_FULL = {**_SAID, "logprobs": True, "return_token_ids": True}
_TOOL = {
    **_FULL,
    "max_tokens": 96,
    "temperature": 0.0,
    "tools": [
        {
            "type": "function",
            "function": {"name": "light", "strict": True, "parameters": _SWITCH},
        }
    ],
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """An answer: [token ids, log-probabilities] of each choice, and what it says of them."""

    version: int
    prompt: list[int]
    choices: list[list[Any]]
    spans: list[Any]
    calls: list[Any]


class Island:
    """The server behind a gate, which is a server, too."""

    def __init__(self, server: Server, places: Path) -> None:
        self._server = server
        self._places = places
        self.url = ""
        self.loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> None:
        self.loop = asyncio.get_running_loop()

    def make(self) -> None:
        self.engine: VllmEngine = self._server.engine()
        self.gate = AdmissionGate({"vllm": self.engine})
        self.app = create_app(self.gate, {"vllm": self.engine})

    async def there(self, work: Awaitable[Any]) -> Any:
        async def within() -> Any:
            return await work

        assert self.loop is not None
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(within(), self.loop))

    async def load(self, version: int) -> None:
        directory = self._places / str(version)
        await self.there(
            self.gate.reload("vllm", version, lambda: self.engine.load(directory, version))
        )
        self.gate.tell(KnownVersions(newest=version))

    async def install(self, base: int, version: int) -> None:
        old, new = (read_checkpoint(self._places / str(v)) for v in (base, version))
        change = update_between(base, old, version, new)
        await self.there(self.engine.stage(change))
        await self.there(self.gate.swap("vllm", version, lambda: self.engine.install(change)))


def run(
    server: Server, places: Path, body: Callable[[Island, aiohttp.ClientSession], Awaitable[None]]
) -> None:
    island = Island(server, places)
    island.make()
    with serve(island.app, island.start) as island.url:

        async def main() -> None:
            try:
                async with aiohttp.ClientSession(island.url) as http:
                    await body(island, http)
            finally:
                await island.there(island.engine.close())

        asyncio.run(main())


async def ask(
    http: aiohttp.ClientSession, route: str, body: dict[str, Any], accepted: str = "0.."
) -> Said:
    async with http.post(route, json=body, headers={VERSIONS_HEADER: accepted}) as answer:
        data = await answer.read()
        assert answer.status == 200, data
        start, end = (answer.headers[f"X-Weight-Version-{e}"] for e in ("Start", "End"))
    assert start == end
    events = list(_events(data)) if body.get("stream") else [json.loads(data)]
    told = events[-1] if body.get("stream") else events[0]
    assert told["weight_version_start"] == told["weight_version_end"] == start
    several = told.get("choice_weight_versions")
    return Said(
        version=int(start),
        prompt=next((e["prompt_token_ids"] for e in events if e.get("prompt_token_ids")), []),
        choices=_choices(events),
        spans=[told["weight_versions"]] if several is None else several,
        calls=[call for e in events for c in e["choices"] for call in _calls(c)],
    )


def _events(data: bytes) -> Iterator[dict[str, Any]]:
    *events, done, rest = data.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    for event in events:
        yield json.loads(event.removeprefix(b"data: "))


def _choices(events: list[dict[str, Any]]) -> list[list[Any]]:
    made: dict[int, list[Any]] = {}
    for event in events:
        for choice in event["choices"]:
            tokens, logprobs = made.setdefault(choice["index"], [[], []])
            tokens += choice.get("token_ids") or []
            content = (choice.get("logprobs") or {}).get("content") or []
            logprobs += [one["logprob"] for one in content]
    return [made[index] for index in sorted(made)]


def _calls(choice: dict[str, Any]) -> list[Any]:
    message = choice.get("message") or choice.get("delta") or {}
    return message.get("tool_calls") or []


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
