"""A real vLLM server: the port's contract, and requests that run while versions change."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from skerry.inference import AdmissionGate, GenerationRequest, WeightUpdate, parse_header
from skerry.inference.accepted import AcceptedVersions
from skerry.inference.engine import EngineError, GeneratedToken
from skerry.inference.engines import VllmEngine
from skerry.inference.engines.vllm_config import PausePolicy
from tests.inference.engine_contract import NEW, OLD, EngineContract, EngineWorld
from tests.inference.vllm.checkpoints import change_between, spoken
from tests.inference.vllm.conftest import FIRST, INSTALLS
from tests.inference.vllm.installed import require_vllm
from tests.inference.vllm.server import Server

require_vllm()

pytestmark = pytest.mark.timeout(1200)

STREAMS = 64


class TestVllmEngine(EngineContract):
    @pytest.fixture
    def world(self, tmp_path: Path, server: Server, places: Path) -> EngineWorld:
        # Shorter than a block of cache: vLLM's log-probabilities after a cached prefix differ in
        # their last bits from those without one, whatever the weights do.
        return EngineWorld(make=server.engine, old=places / str(OLD), new=places / str(NEW))


@dataclass(slots=True, kw_only=True)
class Tally:
    """What came of all requests; `reached` is set at `goal` tokens."""

    tokens: list[GeneratedToken] = field(default_factory=list)
    straddled: int = 0
    whole: int = 0
    cut: int = 0
    outside: int = 0
    goal: int = 0
    reached: asyncio.Event = field(default_factory=asyncio.Event)

    def add(self, token: GeneratedToken) -> None:
        self.tokens.append(token)
        if len(self.tokens) >= self.goal:
            self.reached.set()

    async def more(self, tokens: int) -> None:
        """Return when so many tokens more have been made."""
        self.goal = len(self.tokens) + tokens
        self.reached.clear()
        await self.reached.wait()


@pytest.mark.parametrize("policy", ["keep", "recompute", "drain", "abort"])
def test_every_token_of_64_streams_is_labelled_with_the_weights_that_made_it(
    server: Server, places: Path, policy: PausePolicy
) -> None:
    """Its token says which weights made it, the label only what the engine claims."""
    tally = asyncio.run(_stream_across_installs(server.engine(policy), places))
    assert [t for t in tally.tokens if t.token != spoken(t.version)] == []
    assert {t.version for t in tally.tokens} == set(range(FIRST, FIRST + INSTALLS + 1))
    assert tally.outside == 0
    assert tally.whole > 0
    assert (tally.cut > 0) == (policy == "abort")  # otherwise no request is lost
    assert (tally.straddled > 0) == (policy in ("keep", "recompute"))


async def _stream_across_installs(engine: VllmEngine, places: Path) -> Tally:
    gate, tally, done = AdmissionGate({"vllm": engine}), Tally(), asyncio.Event()
    try:
        await engine.load(places / str(FIRST), FIRST)
        gate.set_served("vllm", FIRST)
        async with asyncio.TaskGroup() as group:
            for number in range(STREAMS):
                group.create_task(_requests(number, gate, engine, tally, done))
            for version in range(FIRST + 1, FIRST + INSTALLS + 1):
                await tally.more(4 * STREAMS)
                change = change_between(places, version - 1, version)
                await engine.stage(change)

                async def install(change: WeightUpdate = change) -> None:
                    await engine.install(change)

                await gate.swap("vllm", version, install)
                assert engine.version == version
                assert not engine.reads_mirror  # so that it need not wait for one
            await tally.more(4 * STREAMS)
            done.set()
    finally:
        await engine.close()
    return tally


async def _requests(
    number: int, gate: AdmissionGate, engine: VllmEngine, tally: Tally, done: asyncio.Event
) -> None:
    """Make one request after another: most accept any version, some only two of them."""
    while not done.is_set():
        served = gate.served()[0]
        header = "0.." if number % 4 else f"{served}..{served + 1}"
        accepted = parse_header(header).resolve(served)
        request = GenerationRequest(prompt=(1, 2, 3), max_tokens=24, temperature=0.0)
        async with gate.admit(accepted, wait_s=60):
            made = await _made(engine, request, tally)
        _count(made, request, accepted, tally)


async def _made(engine: VllmEngine, request: GenerationRequest, tally: Tally) -> list[int]:
    versions: list[int] = []
    try:
        async with aclosing(engine.generate(request)) as tokens:
            async for token in tokens:
                versions.append(token.version)
                tally.add(token)
    except EngineError:
        tally.cut += 1
    return versions


def _count(
    made: list[int], request: GenerationRequest, accepted: AcceptedVersions, tally: Tally
) -> None:
    assert made == sorted(made)
    tally.whole += len(made) == request.max_tokens
    tally.straddled += len(set(made)) > 1
    tally.outside += sum(not accepted.contains(version) for version in made)


def test_an_engine_whose_agent_dies_in_the_pause_makes_tokens_again(
    server: Server, places: Path
) -> None:
    async def body() -> None:
        dying, heir = server.engine(lease_s=0.5), server.engine()
        try:
            await heir.load(places / str(OLD), OLD)
            await dying.pause()
            request = GenerationRequest(prompt=(1, 2, 3), max_tokens=4, ignore_eos=True)
            made = [token async for token in heir.generate(request)]
            assert [t.version for t in made] == [OLD] * 4
        finally:
            await dying.close()
            await heir.close()

    asyncio.run(body())


def test_an_engine_whose_agent_leaves_while_requests_drain_lets_others_in(
    server: Server, places: Path
) -> None:
    async def body() -> None:
        dying, heir = server.engine("drain"), server.engine()
        long = GenerationRequest(prompt=(1, 2, 3), max_tokens=4000, ignore_eos=True)
        try:
            await heir.load(places / str(OLD), OLD)
            async with aclosing(heir.generate(long)) as running:
                await anext(running)
                pausing = asyncio.ensure_future(dying.pause())
                while not await _paused(heir):
                    await asyncio.sleep(0.01)
                pausing.cancel()
                request = GenerationRequest(prompt=(1, 2, 3), max_tokens=4, ignore_eos=True)
                assert [t.version async for t in heir.generate(request)] == [OLD] * 4
                assert (await anext(running)).version == OLD
        finally:
            await dying.close()
            await heir.close()

    asyncio.run(body())


async def _paused(engine: VllmEngine) -> bool:
    async with engine._open().get("state") as answer:
        return bool((await answer.json())["paused"])


@pytest.mark.parametrize("token", ["", "Bearer", "Bearer 00", "Basic 00"])
def test_nobody_without_the_token_can_tell_the_engine_anything(server: Server, token: str) -> None:
    for name, body in (("load", {"directory": "/", "version": 9}), ("pause", {}), ("generate", {})):
        request = urllib.request.Request(
            f"{server.url}/skerry/v1/{name}",
            data=json.dumps(body).encode(),
            headers={"Authorization": token},
        )
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=60)
        with refused.value as answer:
            assert answer.status == 401
