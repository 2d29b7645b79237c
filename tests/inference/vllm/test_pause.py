"""Pauses: by each policy, ended by whoever resumes or by themselves, and no request is lost."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from skerry.inference.engine import EngineError, GenerationRequest, InstallFailed
from skerry.inference.exchange import Exchange
from skerry.inference.vllm.front import Front
from skerry.inference.vllm.pause import Policy
from tests.inference.placement.models import version_path
from tests.inference.vllm.ranks import RanksCore, soon
from tests.inference.vllm.test_front import run, versions


@pytest.mark.parametrize(
    ("policy", "mode"),
    [
        ("keep", ("keep", False)),
        ("recompute", ("keep", True)),
        ("drain", ("wait", False)),
        ("abort", ("abort", False)),
    ],
)
def test_a_policy_is_what_vllm_calls_it(
    tmp_path: Path, policy: Policy, mode: tuple[str, bool]
) -> None:
    async def body(core: RanksCore, front: Front, exchange: Exchange) -> None:
        await front.pause(policy, 60)
        assert core.modes[-1] == mode
        await front.resume()

    run(tmp_path, body)


def test_an_engine_whose_agent_dies_in_the_pause_resumes_by_itself(tmp_path: Path) -> None:
    async def body(core: RanksCore, front: Front, exchange: Exchange) -> None:
        await front.pause("keep", 0.01)
        await core.until(lambda: not core.paused)
        assert (front.state().version, front.state().paused) == (0, False)
        with pytest.raises(InstallFailed):  # what comes too late does not write under way
            await front.install(1)

    run(tmp_path, body)


def test_a_pause_that_could_not_be_ended_is_tried_again_although_nobody_asks(
    tmp_path: Path,
) -> None:
    async def body(core: RanksCore, front: Front, exchange: Exchange) -> None:
        front._pause._retry_s = 0.0
        core.failing_resumes = 2
        await front.pause("keep", 0.01)
        await core.until(lambda: not core.paused)
        core.failing_resumes = 2
        with pytest.raises(RuntimeError):
            await front.load(version_path(tmp_path, 1), 1, "")
        await core.until(lambda: not core.paused)
        assert front.state().version == 1

    run(tmp_path, body)


def test_an_engine_that_drains_for_ever_can_still_be_resumed(tmp_path: Path) -> None:
    async def body(core: RanksCore, front: Front, exchange: Exchange) -> None:
        request = GenerationRequest(prompt=(1,), max_tokens=2)
        pieces = front.generate(request)
        core.permit(1)
        await anext(pieces)
        pausing = asyncio.create_task(front.pause("drain", 60))
        await soon()
        await front.resume()
        with pytest.raises(EngineError, match="called off"):
            await pausing
        core.permit(1)
        assert (await anext(pieces)).finish == "length"
        assert not front.state().paused

    run(tmp_path, body)


def test_a_request_without_tokens_starts_over_and_shares_no_prefix_with_the_old_version(
    tmp_path: Path,
) -> None:
    async def body(core: RanksCore, front: Front, exchange: Exchange) -> None:
        async def labels(tokens: int) -> list[str]:
            request = GenerationRequest(prompt=(1,), max_tokens=tokens)
            return [piece.labels[0] async for piece in front.generate(request)]

        running = asyncio.create_task(labels(3))
        core.permit(1)
        await soon()
        waiting = asyncio.create_task(labels(1))
        await soon()
        await front.pause("keep", 60)
        await front.install(1)
        await front.resume()
        core.permit(3)
        assert await running == ["0", "1", "1"]
        assert await waiting == ["1"]
        first, second, third = core.salts
        assert first == second
        assert first.startswith("skerry-0-")
        assert third.startswith("skerry-1-")

    run(tmp_path, body)


async def _labels(front: Front, tokens: int) -> list[str]:
    request = GenerationRequest(prompt=(1,), max_tokens=tokens)
    return [label async for piece in front.generate(request) for label in piece.labels]


def test_a_pause_that_ends_all_requests_loses_none_that_has_no_token_yet(tmp_path: Path) -> None:
    async def body(core: RanksCore, front: Front, exchange: Exchange) -> None:
        running = asyncio.create_task(_labels(front, 3))
        core.permit(1)
        await soon()
        waiting = asyncio.create_task(_labels(front, 2))
        await soon()
        await front.pause("abort", 60)
        with pytest.raises(EngineError, match="abort"):
            await running
        await soon()
        core.refusals[0, "skerry_install"] = {"ok": False, "broken": False, "error": "no memory"}
        with pytest.raises(InstallFailed):
            await front.install(1)
        await front.resume()
        core.permit(9)
        assert (await waiting, versions(core)) == (["0", "0"], [0, 0])

    run(tmp_path, body)


def test_a_load_loses_no_request_that_has_no_token_yet(tmp_path: Path) -> None:
    async def body(core: RanksCore, front: Front, exchange: Exchange) -> None:
        waiting = asyncio.create_task(_labels(front, 2))
        await soon()
        await front.load(version_path(tmp_path, 1), 1, "")
        core.permit(2)
        assert await waiting == ["1", "1"]

    run(tmp_path, body)
