"""SGLang's adapter against a server that speaks the protocol as it was read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from skerry.inference.engine import (
    EngineBroken,
    EngineError,
    GeneratedToken,
    GenerationRequest,
    InstallFailed,
    RequestUnsupported,
)
from skerry.inference.engines.sglang import SglangEngine
from skerry.inference.engines.sglang_wire import Answer
from skerry.inference.engines.vllm_config import SglangConfig
from tests.inference.engines.sglang_server import SglangServer, serving_files
from tests.inference.serving import serve
from tests.inference.stand_in import Checkpoints, token_of

T = TypeVar("T")
OLD, NEW = 5, 6
ASKED = GenerationRequest(prompt=(1, 2, 3), max_tokens=4, temperature=0.0)


class World:
    """A server, and checkpoints OLD and NEW.  `mirror` is a link to the one that the island has."""

    def __init__(self, root: Path) -> None:
        self.server = SglangServer()
        self.checkpoints = Checkpoints(root)
        self.update = self.checkpoints.update(OLD, NEW)
        self.mirror = root / "mirror"
        self.url = ""
        self.loop: asyncio.AbstractEventLoop | None = None
        for version in (OLD, NEW):
            serving_files(self.checkpoints, version)
        self.hold(OLD)

    def hold(self, version: int) -> None:
        """Let the mirror be at `version`."""
        self.mirror.unlink(missing_ok=True)
        self.mirror.symlink_to(self.checkpoints.path(version))

    async def start(self) -> None:
        self.loop = asyncio.get_running_loop()

    async def there(self, make: Callable[[], Awaitable[T]]) -> T:
        async def within() -> T:
            return await make()

        assert self.loop is not None
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(within(), self.loop))

    async def permit(self, tokens: int) -> None:
        async def act() -> None:
            self.server.permit(tokens)

        await self.there(act)

    async def until(self, holds: Callable[[], bool]) -> None:
        async def wait() -> None:
            while not holds():
                await self.server.changes.wait(None)

        await self.there(wait)

    def proved(self, tokens: list[GeneratedToken]) -> None:
        for at, token in enumerate(tokens):
            assert token.token == token_of(self.checkpoints.digest(token.version), at)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    with serve(world.server.app, world.start) as world.url:
        yield world


def run(world: World, body: Callable[[SglangEngine], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        engine = SglangEngine(
            SglangConfig(url=world.url, namespace="run-7", state_s=3600.0, **settings)
        )
        try:
            assert engine.version is None
            await engine.load(world.mirror, OLD)
            await body(engine)
        finally:
            await engine.close()

    asyncio.run(main())


async def switch(world: World, engine: SglangEngine) -> None:
    await engine.stage(world.update)
    world.hold(NEW)
    await engine.pause()
    try:
        await engine.install(world.update)
    finally:
        await engine.resume()


async def made(engine: SglangEngine, request: GenerationRequest = ASKED) -> list[GeneratedToken]:
    return [token async for token in engine.generate(request)]


async def all_of(tokens: AsyncGenerator[GeneratedToken, None], version: int) -> None:
    """Read to the end, which may be an error."""
    async for token in tokens:
        assert token.version == version


@pytest.mark.parametrize("spans", [True, False])
def test_tokens_bear_the_version_that_made_them_before_and_after(world: World, spans: bool) -> None:
    async def body(engine: SglangEngine) -> None:
        world.server.spans = spans
        for version in (OLD, NEW):
            tokens = await made(engine)
            assert [t.version for t in tokens] == [version] * 4
            assert [t.finish_reason for t in tokens] == [None] * 3 + ["length"]
            world.proved(tokens)
            if version == OLD:
                await switch(world, engine)
        assert len(set(world.server.keys)) == 2  # no prefix of the old version is seen

    run(world, body)


@pytest.mark.parametrize(
    ("policy", "mode", "flush"), [("keep", "in_place", False), ("recompute", "retract", True)]
)
def test_a_running_request_gets_two_spans_and_the_cache_is_flushed_where_it_can_be(
    world: World, policy: str, mode: str, flush: bool
) -> None:
    async def body(engine: SglangEngine) -> None:
        await world.permit(3)
        tokens = engine.generate(ASKED)
        first = [await anext(tokens), await anext(tokens)]
        await switch(world, engine)
        await world.permit(1)
        whole = first + [token async for token in tokens]
        assert [t.version for t in whole] == [OLD, OLD, OLD, NEW]
        world.proved(whole)
        assert f"pause {mode}" in world.server.calls
        assert world.server.flushes[-1] is flush

    run(world, body, policy=policy)


def test_without_spans_an_answer_across_an_install_is_refused_and_not_guessed(
    world: World,
) -> None:
    async def body(engine: SglangEngine) -> None:
        world.server.spans = False
        await world.permit(2)
        reading = asyncio.create_task(made(engine))
        await world.until(lambda: not world.server.permits)
        await switch(world, engine)
        await world.permit(8)
        # It had shown no token: it is made anew by the new version, from its start.
        tokens = await reading
        assert [t.version for t in tokens] == [NEW] * 4
        world.proved(tokens)

    run(world, body)


def test_a_request_without_a_token_starts_over_under_the_new_versions_key(world: World) -> None:
    async def body(engine: SglangEngine) -> None:
        await world.permit(0)
        reading = asyncio.create_task(made(engine))
        await world.until(lambda: world.server.running == 1)
        await switch(world, engine)
        await world.permit(8)
        tokens = await reading
        assert [t.version for t in tokens] == [NEW] * 4
        assert len(world.server.keys) == len(set(world.server.keys)) == 2

    run(world, body)


def test_a_load_that_fails_leaves_no_version_and_no_label_that_lies(world: World) -> None:
    async def body(engine: SglangEngine) -> None:
        world.server.failing = True
        with pytest.raises(EngineBroken, match="rank 1 failed"):
            await switch(world, engine)
        assert engine.version is None
        assert world.server.label == "skerry-unknown"
        assert not world.server.paused
        with pytest.raises(EngineError):
            await made(engine)
        world.server.failing = False
        await engine.load(world.mirror, NEW)
        assert [t.version for t in await made(engine)] == [NEW] * 4
        with pytest.raises(EngineBroken):
            await engine.load(world.mirror / "nothing", NEW)
        assert engine.version is None

    run(world, body)


def test_half_loaded_weights_give_no_token_to_a_request_that_was_running(world: World) -> None:
    async def body(engine: SglangEngine) -> None:
        await world.permit(2)
        tokens = engine.generate(ASKED)
        await anext(tokens)
        world.server.failing = True
        with pytest.raises(EngineBroken):
            await switch(world, engine)
        await world.permit(2)
        with pytest.raises(EngineError, match="without a version"):
            await all_of(tokens, OLD)

    run(world, body)


def test_what_was_not_staged_for_the_version_that_is_served_is_not_installed(world: World) -> None:
    async def body(engine: SglangEngine) -> None:
        await engine.pause()
        with pytest.raises(InstallFailed):
            await engine.install(world.update)
        await engine.resume()
        await switch(world, engine)
        with pytest.raises(InstallFailed):
            await engine.stage(world.update)

    run(world, body)


def test_drain_waits_for_running_requests(world: World) -> None:
    async def body(engine: SglangEngine) -> None:
        await world.permit(2)
        reading = asyncio.create_task(made(engine))
        await world.until(lambda: not world.server.permits)
        switching = asyncio.create_task(switch(world, engine))
        await world.permit(2)
        assert [t.version for t in await reading] == [OLD] * 4
        await switching
        assert engine.version == NEW

    run(world, body, policy="drain")


def test_whoever_comes_while_requests_drain_waits_for_the_new_version(world: World) -> None:
    """One after the other they would keep the engine from it for ever."""

    async def body(engine: SglangEngine) -> None:
        await world.permit(2)
        reading = asyncio.create_task(made(engine))
        await world.until(lambda: not world.server.permits)
        switching = asyncio.create_task(switch(world, engine))
        while not engine._closed:
            await asyncio.sleep(0)
        late = asyncio.create_task(made(engine))
        await asyncio.sleep(0)
        await world.permit(6)
        assert [t.version for t in await reading] == [OLD] * 4
        await switching
        assert [t.version for t in await late] == [NEW] * 4

    run(world, body, policy="drain")


def test_whoever_comes_while_weights_are_loaded_is_not_refused(world: World) -> None:
    async def body(engine: SglangEngine) -> None:
        loading, may_go_on = asyncio.Event(), asyncio.Event()
        replace = engine._replace

        async def slow(*args: Any, **more: Any) -> None:
            loading.set()
            await may_go_on.wait()
            await replace(*args, **more)

        engine._replace = slow  # type: ignore[method-assign]
        switching = asyncio.create_task(switch(world, engine))
        await loading.wait()
        late = asyncio.create_task(made(engine))
        await asyncio.sleep(0)
        may_go_on.set()
        await switching
        assert [t.version for t in await late] == [NEW] * 4

    run(world, body)


def test_a_pause_that_ends_all_requests_loses_none_that_has_no_token_yet(world: World) -> None:
    async def body(engine: SglangEngine) -> None:
        await world.permit(2)
        running = engine.generate(ASKED)
        await anext(running)
        waiting = asyncio.create_task(made(engine))
        await world.until(lambda: world.server.running == 2)
        await switch(world, engine)
        with pytest.raises(EngineError, match="abort"):
            await all_of(running, OLD)
        await world.permit(8)
        tokens = await waiting
        assert [t.version for t in tokens] == [NEW] * 4
        world.proved(tokens)

    run(world, body, policy="abort")


@pytest.mark.parametrize(
    ("name", "value"),
    [("dp_size", 2), ("incremental_streaming_output", True), ("disaggregation_mode", "decode")],
)
def test_a_server_that_cannot_be_switched_as_one_is_refused(
    world: World, name: str, value: object
) -> None:
    world.server.info[name] = value

    async def main() -> None:
        engine = SglangEngine(SglangConfig(url=world.url))
        try:
            with pytest.raises(EngineBroken, match=name):
                await engine.load(world.mirror, OLD)
        finally:
            await engine.close()

    asyncio.run(main())


def test_what_the_model_or_the_server_cannot_do_is_refused_before_the_first_token(
    world: World,
) -> None:
    async def body(engine: SglangEngine) -> None:
        for prompt, most in (((), 1), ((1,), 0), ((1, 10**6), 1), ((1,), 8192)):
            with pytest.raises(RequestUnsupported):
                await made(engine, GenerationRequest(prompt=prompt, max_tokens=most))
        seeded = GenerationRequest(prompt=(1,), max_tokens=2, seed=3)
        with pytest.raises(RequestUnsupported, match="seed"):
            await made(engine, seeded)
        routed = GenerationRequest(prompt=(1,), max_tokens=2, routed_experts=True)
        with pytest.raises(RequestUnsupported, match="return_routed_experts"):
            await made(engine, routed)
        assert not world.server.keys

    run(world, body)


BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "no meta_info"),
    ({"meta_info": {"output_token_logprobs": [[None, 1, ""]]}}, "log-probability"),
    ({"meta_info": {"output_token_logprobs": 5}}, "list"),
    ({"meta_info": {"finish_reason": {"type": "abort"}}}, "ended the request"),
    ({"meta_info": {"finish_reason": {"type": "stop"}}}, "which weights"),
]


@pytest.mark.parametrize(("event", "why"), BAD)
def test_an_answer_that_breaks_its_promises_is_an_error(event: dict[str, Any], why: str) -> None:
    with pytest.raises(EngineError, match=why):
        Answer().push(event, OLD)


@pytest.mark.parametrize(
    "spans",
    [
        [{"version": "default", "start": 0, "end": 2}],
        [{"version": "5", "start": 0, "end": 1}],
        [{"version": "5", "start": 1, "end": 2}],
        [{"version": "5", "start": 0, "end": 9}],
        [{"version": 5, "start": 0, "end": 2}],
        ["5"],
    ],
)
def test_spans_that_do_not_name_the_weights_of_each_token_are_errors(spans: list[Any]) -> None:
    meta = {
        "output_token_logprobs": [[-0.5, 1], [-0.5, 2]],
        "finish_reason": {"type": "stop"},
        "weight_versions": spans,
        "weight_version": "5",
    }
    with pytest.raises(EngineError):
        Answer().push({"meta_info": meta}, OLD)


def test_tokens_that_are_taken_back_are_an_error() -> None:
    answer = Answer()
    answer.push({"meta_info": {"output_token_logprobs": [[-0.5, 1], [-0.5, 2]]}}, OLD)
    with pytest.raises(EngineError, match="took back"):
        answer.push({"meta_info": {"output_token_logprobs": [[-0.5, 3]]}}, OLD)
