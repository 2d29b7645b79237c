"""A real vLLM server: cached prefixes never cross versions, and a context can be computed anew."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from pathlib import Path

import pytest

from skerry.inference import GenerationRequest
from skerry.inference.engine import GeneratedToken
from skerry.inference.engines.vllm_config import PausePolicy
from tests.inference.engine_contract import NEW, OLD
from tests.inference.vllm.checkpoints import change_between
from tests.inference.vllm.installed import require_vllm
from tests.inference.vllm.server import Server

require_vllm()

pytestmark = pytest.mark.timeout(1200)


@pytest.mark.parametrize("policy", ["keep", "recompute"])
def test_no_cached_prefix_of_the_old_version_is_read_by_a_new_request(
    server: Server, places: Path, policy: PausePolicy
) -> None:
    async def body() -> None:
        engine = server.engine(policy)
        request = GenerationRequest(
            prompt=tuple(range(10, 150)), max_tokens=8, temperature=0.0, ignore_eos=True
        )

        async def ask() -> list[tuple[int, float]]:
            return [(t.token, t.logprob) async for t in engine.generate(request)]

        try:
            await engine.load(places / str(OLD), OLD)
            old = await ask()
            await ask()  # four blocks of it are cached now
            change = change_between(places, OLD, NEW)
            await engine.stage(change)
            await engine.pause()
            await engine.install(change)
            await engine.resume()
            new = await ask()
            await engine.load(places / str(NEW), NEW)  # which empties all caches
            assert new == await ask()
            assert new != old
        finally:
            await engine.close()

    asyncio.run(body())


@pytest.mark.parametrize("policy", ["keep", "recompute"])
def test_a_version_that_comes_back_reads_no_prefix_that_other_weights_have_cached(
    server: Server, places: Path, policy: PausePolicy
) -> None:
    """A request that runs across an install goes on caching what it says, by the new weights."""

    async def body() -> None:
        engine = server.engine(policy)
        prompt = tuple(range(10, 50))

        async def switch(base: int, version: int) -> None:
            change = change_between(places, base, version)
            await engine.stage(change)
            await engine.pause()
            await engine.install(change)
            await engine.resume()

        async def ask(prompt: tuple[int, ...], new: int) -> list[GeneratedToken]:
            request = GenerationRequest(
                prompt=prompt, max_tokens=new, temperature=0.0, ignore_eos=True
            )
            made: list[GeneratedToken] = []
            async for token in engine.generate(request):
                made.append(token)
                if new > 64 and len(made) == 8:
                    await switch(OLD, NEW)
            return made

        try:
            await engine.load(places / str(OLD), OLD)
            across = await ask(prompt, 400)
            cached = sum(t.version == OLD for t in across) + 96  # and three blocks by the new ones
            assert cached < 400
            await switch(NEW, OLD)
            follow = (*prompt, *(t.token for t in across[:cached]))
            found = await ask(follow, 8)
            await engine.load(places / str(OLD), OLD)  # which empties all caches
            assert found == await ask(follow, 8)
        finally:
            await engine.close()

    asyncio.run(body())


def test_recomputed_context_is_that_of_the_new_weights(server: Server, places: Path) -> None:
    """What follows an install equals what the new version says after the same tokens."""

    async def body() -> None:
        engine = server.engine("recompute")
        try:
            await engine.load(places / str(OLD), OLD)
            prompt = tuple(range(10, 80))
            request = GenerationRequest(
                prompt=prompt, max_tokens=400, temperature=0.0, ignore_eos=True
            )
            change = change_between(places, OLD, NEW)
            await engine.stage(change)
            made: list[GeneratedToken] = []
            async with aclosing(engine.generate(request)) as tokens:
                async for token in tokens:
                    made.append(token)
                    if len(made) == 8:
                        await engine.pause()
                        await engine.install(change)
                        await engine.resume()
            said = [t.token for t in made]
            old = sum(t.version == OLD for t in made)
            assert 8 <= old < 400
            assert {t.version for t in made[old:]} == {NEW}
            follow = GenerationRequest(
                prompt=(*prompt, *said[:old]),
                max_tokens=min(64, 400 - old),
                temperature=0.0,
                ignore_eos=True,
            )
            expected = [t.token async for t in engine.generate(follow)]
            assert said[old : old + len(expected)] == expected
        finally:
            await engine.close()

    asyncio.run(body())
