"""A real server's own routes behind a gate over HTTP, and what their answers say."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from skerry.inference import AdmissionGate, KnownVersions
from skerry.inference.constraint import VERSIONS_HEADER
from skerry.inference.engines import VllmEngine
from skerry.inference.server import create_app
from tests.inference.serving import serve
from tests.inference.vllm.checkpoints import change_between
from tests.inference.vllm.server import Server


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
        change = change_between(self._places, base, version)
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
