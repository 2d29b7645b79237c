"""The adapter and the plug-in over HTTP, around ranks without vLLM: routes that are passed on.

`test_passed.py` asks the real ones.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from skerry.inference.engine import (
    EngineError,
    GenerationRequest,
    InstallFailed,
    RequestUnsupported,
)
from skerry.inference.engines import VllmEngine
from tests.inference.placement.models import update, version_path
from tests.inference.vllm.passed_server import CHAT, TOKENS, Server, answer_of, asked, run
from tests.inference.vllm.ranks import RanksCore

SPANS = [{"version": "0", "start": 0, "end": 2}]
BOUNDS = {"weight_version_start": "0", "weight_version_end": "0"}


def test_a_request_is_salted_with_its_version_and_bears_no_token_of_ours(tmp_path: Path) -> None:
    async def body(server: Server, engine: VllmEngine) -> None:
        await engine.load(version_path(tmp_path, 0), 0)
        await answer_of(engine, asked(n=1))
        await answer_of(engine, asked(cache_salt="m@y/own" * 200))
        await engine.load(version_path(tmp_path, 0), 0)
        await answer_of(engine, asked())
        salts = [seen["body"]["cache_salt"] for seen in server.seen]
        assert len(set(salts)) == 3  # the last is of the same version, of another install
        assert all(salt.startswith("skerry-0-") for salt in salts)
        # vLLM refuses longer ones, and separators of the caches behind it.
        assert all(len(salt) <= 128 and not set("@/\\\0") & set(salt) for salt in salts)
        assert server.seen[0]["body"]["n"] == 1
        assert {seen["headers"]["authorization"] for seen in server.seen} == {"Bearer theirs"}
        for salt in (7, ""):
            with pytest.raises(RequestUnsupported, match="cache_salt"):
                await answer_of(engine, asked(cache_salt=salt))

    run(tmp_path, body)


def test_an_object_begins_with_the_version_of_every_token(tmp_path: Path) -> None:
    async def body(server: Server, engine: VllmEngine) -> None:
        await engine.load(version_path(tmp_path, 0), 0)
        for route in (CHAT, TOKENS):
            said = await answer_of(engine, asked(route))
            assert said.endswith(b',"choices":[]}')
            assert json.loads(said) == {**BOUNDS, "weight_versions": SPANS, "choices": []}
        said = await answer_of(engine, asked(n=2))
        assert json.loads(said)["choice_weight_versions"] == [SPANS, SPANS]
        assert "weight_versions" not in json.loads(said)

    run(tmp_path, body)


def test_a_stream_ends_with_the_version_of_every_token(tmp_path: Path) -> None:
    async def body(server: Server, engine: VllmEngine) -> None:
        await engine.load(version_path(tmp_path, 0), 0)
        for route, head in ((CHAT, {"id": "r-1", "model": "policy"}), (TOKENS, {})):
            *events, last, done, rest = (await answer_of(engine, asked(route, stream=True))).split(
                b"\n\n"
            )
            assert (events, done, rest) == ([b"data: {}"] * 2, b"data: [DONE]", b"")
            said = json.loads(last.removeprefix(b"data: "))
            assert said.items() >= {**BOUNDS, **head}.items()
            assert (said["weight_versions"], said["choices"]) == (SPANS, [])

    run(tmp_path, body)


def test_an_engine_that_accounts_for_other_weights_or_for_none_answers_nothing(
    tmp_path: Path,
) -> None:
    async def body(server: Server, engine: VllmEngine) -> None:
        await engine.load(version_path(tmp_path, 0), 0)
        with pytest.raises(EngineError, match="several requests"):
            await answer_of(engine, asked(twice=True))
        server.client.label = "1"
        with pytest.raises(EngineError, match="expected tokens of version 0, found '1'"):
            await answer_of(engine, asked())
        with pytest.raises(EngineError):
            await answer_of(engine, asked(stream=True))
        server.client.spans = False
        with pytest.raises(EngineError, match="does not say"):
            await answer_of(engine, asked())
        server.client.ending = False
        with pytest.raises(EngineError, match="before all of its tokens"):
            await answer_of(engine, asked())

    run(tmp_path, body)


def test_a_stream_that_ends_with_the_engines_own_error_claims_no_tokens(tmp_path: Path) -> None:
    async def body(server: Server, engine: VllmEngine) -> None:
        await engine.load(version_path(tmp_path, 0), 0)
        server.client.ending = False
        said = await answer_of(engine, asked(stream=True))
        assert said == b"data: {}\n\ndata: [DONE]\n\n"

    run(tmp_path, body)


def test_a_refusal_of_the_engine_is_its_own(tmp_path: Path) -> None:
    async def body(server: Server, engine: VllmEngine) -> None:
        await engine.load(version_path(tmp_path, 0), 0)
        async with engine.ask(asked(status=404)) as answer:
            said = b"".join([piece async for piece in answer.pieces])
        assert (answer.status, said) == (404, b'{"error":"no such model"}')

    run(tmp_path, body)


def test_other_weights_than_the_gate_admitted_the_request_to_answer_nothing(tmp_path: Path) -> None:
    async def body(server: Server, engine: VllmEngine) -> None:
        with pytest.raises(EngineError, match="not said yet"):
            await answer_of(engine, asked())
        await engine.load(version_path(tmp_path, 0), 0)
        with pytest.raises(EngineError, match="X-Skerry-Weights"):
            await answer_of(engine, asked(version=1))
        await server.start()  # a restart that nobody has noticed yet
        with pytest.raises(EngineError, match="X-Skerry-Weights"):
            await answer_of(engine, asked())
        assert not server.seen

    run(tmp_path, body)


def test_an_answer_under_which_the_weights_change_is_broken_off(tmp_path: Path) -> None:
    async def body(server: Server, engine: VllmEngine) -> None:
        await engine.load(version_path(tmp_path, 0), 0)
        server.reload = True  # by the same version: its name is another one
        with pytest.raises(EngineError):
            await answer_of(engine, asked(TOKENS, stream=True))

    run(tmp_path, body)


def test_updates_that_the_engine_refuses_leave_nothing_behind(tmp_path: Path) -> None:
    async def body(server: Server, engine: VllmEngine) -> None:
        await engine.load(version_path(tmp_path, 0), 0)
        for version in (2, 3):
            with pytest.raises(InstallFailed):
                await engine.stage(update(tmp_path, 1, version))
        assert list((tmp_path / "exchange" / "records").iterdir()) == []

    run(tmp_path, body)


def test_an_agent_that_leaves_while_requests_drain_leaves_an_engine_that_runs(
    tmp_path: Path,
) -> None:
    async def body(server: Server, engine: VllmEngine) -> None:
        await engine.load(version_path(tmp_path, 0), 0)
        assert server.front is not None
        core = server.front._core
        assert isinstance(core, RanksCore)
        request = GenerationRequest(prompt=(1,), max_tokens=1)
        running = asyncio.ensure_future(anext(engine.generate(request)))
        while not core.open:
            await asyncio.sleep(0)
        pausing = asyncio.ensure_future(engine.pause())
        while not core.modes:
            await asyncio.sleep(0)
        pausing.cancel()
        while server.front.state().paused:
            await asyncio.sleep(0)
        core.permit(1)
        assert (await running).version == 0

    run(tmp_path, body, policy="drain")


def test_a_server_that_proves_nothing_is_not_believed(tmp_path: Path) -> None:
    """One whose plug-in is older than the agent answers without naming its weights."""

    async def body(server: Server, engine: VllmEngine) -> None:
        await engine.load(version_path(tmp_path, 0), 0)
        server.app.user_middleware.clear()
        server.app.middleware_stack = server.app.build_middleware_stack()
        with pytest.raises(EngineError, match="expected weights"):
            await answer_of(engine, asked())

    run(tmp_path, body)
