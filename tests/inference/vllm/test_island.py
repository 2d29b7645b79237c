"""A whole island: `skerry agent --engine vllm` follows a run, and is killed while it does."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from skerry.bulletin import Signer
from skerry.bulletin.stores import LocalStore
from skerry.inference.client import RolloutClient
from skerry.inference.completion import Completion
from skerry.publisher import Checkpoint, Publisher
from tests.inference.vllm.checkpoints import speaking, spoken, write_model
from tests.inference.vllm.installed import require_vllm
from tests.inference.vllm.server import Server

require_vllm()

pytestmark = pytest.mark.timeout(1200)

STREAMS, VERSIONS = 64, 6


class Run:
    """A bulletin whose versions say their own number with every token."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.bulletin = root / "bulletin"
        self.signer = Signer.generate()
        self._publisher = Publisher.open(LocalStore(self.bulletin), signer=self.signer)

    async def publish(self, version: int) -> None:
        def publish() -> None:
            directory = write_model(self.root / str(version), "dense", speaking(version))
            report = self._publisher.publish(Checkpoint.scan(directory), step=version)
            assert report.version == version

        await asyncio.to_thread(publish)


class Agent:
    """The command, in a process of its own."""

    def __init__(self, run: Run, server: Server, policy: str) -> None:
        with socket.socket() as chosen:
            chosen.bind(("127.0.0.1", 0))
            port = chosen.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        command = [
            sys.executable, "-m", "skerry", "agent", str(run.bulletin),
            "--dir", str(run.root / "island"), "--port", str(port), "--poll", "0.1",
            "--engine", "vllm", "--engine-url", server.url, "--engine-dir", str(server.exchange),
            "--engine-policy", policy, "--audit-engine",
        ]  # fmt: skip
        with (run.root / "agent.log").open("ab") as log:
            self.process = subprocess.Popen(
                command,
                env={**os.environ, "SKERRY_AGENT_ENGINE_LEASE_S": "2"},
                stdout=subprocess.DEVNULL,
                stderr=log,
            )


@asynccontextmanager
async def streams(url: str, made: list[Completion], failed: list[str]) -> AsyncIterator[None]:
    """Have STREAMS requests under way while the body runs."""
    ending = asyncio.Event()

    async def one(client: RolloutClient) -> None:
        while not ending.is_set():
            try:
                pieces = client.stream(
                    [1, 2, 3], accepted="0..", wait_s=60, max_tokens=24, temperature=0.0
                )
                made.extend([p async for p in pieces if isinstance(p, Completion)])
            except Exception as error:  # the test says which are allowed
                failed.append(repr(error))
                await asyncio.sleep(0.05)

    async with RolloutClient(url) as client, asyncio.TaskGroup() as group:
        for _ in range(STREAMS):
            group.create_task(one(client))
        try:
            yield
        finally:
            ending.set()


async def served(url: str, version: int) -> None:
    """Return when an answer is made by a version, wholly."""
    async with RolloutClient(url) as client:
        answer = await client.complete(
            [1], accepted=str(version), wait_s=120, max_tokens=1, temperature=0.0
        )
    assert answer.tokens == (spoken(version),)


async def how_installed(url: str, version: int) -> str:
    """Return how the engine came to a version: the status says so soon after it is served."""
    async with aiohttp.ClientSession() as session:
        while True:
            async with session.get(f"{url}/status") as answer:
                engine: dict[str, Any] = (await answer.json())["agent"]["engines"]["vllm"]
            if engine["last_install"]["version"] == version:
                return str(engine["last_install"]["kind"])


async def switching(url: str, version: int) -> None:
    """Return while the island brings its engine to a version, or when it just has."""
    async with aiohttp.ClientSession() as session:
        while True:
            async with session.get(f"{url}/status") as answer:
                agent = (await answer.json())["agent"]
            if agent["phase"] == "installing" or agent["version"] == version:
                return


def check(made: list[Completion]) -> None:
    for completion in made:
        for span in completion.spans:
            tokens = completion.tokens[span.start : span.end]
            assert set(tokens) == {spoken(span.version)}, (span, tokens)


def test_no_request_is_lost_while_an_island_follows_a_run(server: Server, tmp_path: Path) -> None:
    async def body() -> None:
        run = Run(tmp_path)
        await run.publish(0)
        agent = Agent(run, server, "keep")
        made: list[Completion] = []
        failed: list[str] = []
        try:
            await served(agent.url, 0)
            async with streams(agent.url, made, failed):
                for version in range(1, VERSIONS + 1):
                    await run.publish(version)
                    await served(agent.url, version)
                    assert await how_installed(agent.url, version) == "patch"
        finally:
            agent.process.send_signal(signal.SIGTERM)
            code = await asyncio.to_thread(agent.process.wait)
        assert failed == [], (tmp_path / "agent.log").read_text()[-4000:]
        assert code == 0
        check(made)
        assert {s.version for c in made for s in c.spans} == set(range(VERSIONS + 1))
        assert all(len(c.tokens) == 24 for c in made)

    asyncio.run(body())


def test_an_agent_killed_while_it_switches_leaves_an_engine_that_its_heir_brings_to_the_newest(
    server: Server, tmp_path: Path
) -> None:
    async def body() -> None:
        run = Run(tmp_path)
        await run.publish(0)
        made: list[Completion] = []
        for version in range(1, 5):
            agent = Agent(run, server, "keep")
            await served(agent.url, version - 1)
            failed: list[str] = []
            async with streams(agent.url, made, failed):
                await run.publish(version)
                await switching(agent.url, version)
                agent.process.kill()
                await asyncio.to_thread(agent.process.wait)
        heir = Agent(run, server, "keep")
        try:
            await served(heir.url, 4)
        finally:
            heir.process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(heir.process.wait) == 0
        check(made)

    asyncio.run(body())
