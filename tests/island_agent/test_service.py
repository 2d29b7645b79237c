"""Agent and HTTP server in one process."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import aiohttp
import pytest

from skerry.bulletin.log import BulletinReader
from skerry.bulletin.store import ObjectStore
from skerry.inference.engine import WeightUpdate
from skerry.island_agent.agent import Agent
from skerry.island_agent.config import AgentConfig
from skerry.island_agent.errors import MirrorBusy
from skerry.island_agent.mirror import Mirror
from skerry.island_agent.service import ServiceConfig, serve
from tests.island_agent.engines import ByteEngine
from tests.island_agent.runs import assert_is, make_run
from tests.island_agent.stores import TwistedStore


class Island:
    """A service on a free port, stopped by SIGTERM as an operator would."""

    def __init__(
        self,
        directory: Path,
        store: ObjectStore,
        engines: dict[str, ByteEngine] | None = None,
        *,
        shutdown_s: float = 5,
    ) -> None:
        self.shutdown_s = shutdown_s
        config = AgentConfig(directory=directory, poll_s=0.001, idle_poll_s=0.01)
        self.agent = Agent(config, BulletinReader(store), engines=engines)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"

    async def __aenter__(self) -> Island:
        self.session = aiohttp.ClientSession(self.url)
        self.task = asyncio.create_task(
            serve(self.agent, ServiceConfig(shutdown_s=self.shutdown_s), listener=self.listener)
        )
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.session.close()
        if not self.task.done():
            os.kill(os.getpid(), signal.SIGTERM)
        await self.task

    async def status_of(self, path: str) -> int:
        async with self.session.get(path) as answer:
            await answer.read()
            return answer.status

    async def text(self, path: str) -> str:
        async with self.session.get(path) as answer:
            return await answer.text()

    async def reaches(self, version: int) -> None:
        while self.agent.state.installs == 0 or self.agent.state.version != version:
            assert not self.task.done()
            await asyncio.sleep(0)


def test_an_island_without_engines_keeps_the_mirror_and_tells_about_it(tmp_path: Path) -> None:
    run = make_run(1)

    async def main() -> None:
        async with Island(tmp_path / "island", run.store) as island:
            await island.reaches(1)
            assert await island.status_of("/health") == 200
            assert await island.status_of("/ready") == 200
            async with island.session.get("/status") as answer:
                status = await answer.json()
            assert status["agent"]["version"] == 1
            assert status["agent"]["history"][0]["digest"] == run.versions[1].weights
            async with island.session.get("/ready") as answer:
                assert await answer.json() == {"ready": True, "served": []}
            metrics = await island.text("/metrics")
            assert "skerry_requests_waiting 0.0" in metrics
            assert "skerry_island_version 1.0" in metrics
            assert 'skerry_island_install_seconds_total{phase="fetch"}' in metrics
            assert "skerry_newest_weight_version 1.0" in metrics

    asyncio.run(main())
    assert_is(tmp_path / "island" / "mirror", run.versions[1])
    Mirror.open(tmp_path / "island").close()


def test_liveness_stays_while_the_store_is_slow_and_readiness_is_true_about_serving(
    tmp_path: Path,
) -> None:
    run = make_run(1)
    reached, go_on = threading.Event(), threading.Event()

    def slow(key: str, start: int, data: bytes) -> bytes:
        reached.set()
        go_on.wait()
        return data

    store = TwistedStore(run.store, slow)
    engine = ByteEngine()

    async def main() -> None:
        async with Island(tmp_path / "island", store, {"a": engine}) as island:
            await asyncio.to_thread(reached.wait)
            assert await island.status_of("/health") == 200
            assert await island.status_of("/ready") == 503
            assert '"phase":"fetching"' in await island.text("/status")
            go_on.set()
            await island.reaches(1)
            assert await island.status_of("/ready") == 200
            run.extend(1)
            await island.reaches(2)
            body = {"prompt": "x", "max_tokens": 3}
            async with island.session.post("/v1/completions", json=body) as answer:
                assert answer.status == 200
                reply = await answer.json()
            assert reply["weight_versions"] == [{"version": "2", "start": 0, "end": 3}]
            metrics = await island.text("/metrics")
            assert 'skerry_island_engine_version{engine="a"} 2.0' in metrics
            assert 'skerry_requests_total{outcome="completed"} 1.0' in metrics
        assert not engine.paused

    asyncio.run(main())


def test_a_stop_in_the_middle_of_a_download_is_prompt_and_clean(tmp_path: Path) -> None:
    run = make_run(1)
    reached = threading.Event()

    def broken(key: str, start: int, data: bytes) -> bytes:
        reached.set()
        raise ConnectionResetError("again and again")

    async def main() -> None:
        async with Island(tmp_path / "island", TwistedStore(run.store, broken)):
            await asyncio.to_thread(reached.wait)

    asyncio.run(main())
    mirror = Mirror.open(tmp_path / "island")
    assert mirror.held is None
    assert mirror.damage is None
    mirror.close()


def test_a_stop_between_pause_and_resume_leaves_no_engine_paused(tmp_path: Path) -> None:
    run = make_run(1)

    class Stuck(ByteEngine):
        def __init__(self) -> None:
            super().__init__()
            self.entered = asyncio.Event()

        async def install(self, update: WeightUpdate) -> None:
            assert self.paused
            self.entered.set()
            await asyncio.Event().wait()

    async def main() -> None:
        engine = Stuck()
        async with Island(tmp_path / "island", run.store, {"a": engine}, shutdown_s=0.05) as island:
            await island.reaches(1)
            run.extend(1)
            await engine.entered.wait()
        assert not engine.paused

    asyncio.run(main())
    mirror = Mirror.open(tmp_path / "island")
    assert mirror.version == 2
    assert_is(mirror.directory, run.versions[2])
    mirror.close()


def test_a_directory_that_another_agent_holds_ends_the_service_with_a_reason(
    tmp_path: Path,
) -> None:
    mirror = Mirror.open(tmp_path / "island")

    async def main() -> None:
        with pytest.raises(MirrorBusy):
            async with Island(tmp_path / "island", make_run().store) as island:
                await asyncio.wait({island.task})

    asyncio.run(main())
    mirror.close()


def test_the_agent_needs_neither_torch_nor_an_http_stack() -> None:
    code = (
        "import sys, skerry.island_agent.agent, skerry.island_agent.pull\n"
        "heavy = {'torch', 'fastapi', 'uvicorn', 'aiohttp', 'prometheus_client'}\n"
        "assert not heavy & sys.modules.keys(), heavy & sys.modules.keys()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_missing_http_stack_names_the_extra() -> None:
    code = (
        "import sys\n"
        "sys.modules['uvicorn'] = None\n"
        "try:\n"
        "    import skerry.island_agent.service\n"
        "except ModuleNotFoundError as error:\n"
        "    assert 'skerry[agent]' in str(error), error\n"
        "else:\n"
        "    raise SystemExit(1)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
