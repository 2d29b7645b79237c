"""A child process that is an island with one engine: `python -m tests.island_agent.process ...`.

Arguments: address, directory, engine's state, trouble, shutdown seconds.  The engine's being paused
is kept in a file, as that of an engine which is a process of its own.  The child tells each event
in a line of standard output; `trouble` is what goes wrong, see `Outside`.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

from skerry.bulletin.log import BulletinReader
from skerry.bulletin.stores import open_store
from skerry.inference.engine import GeneratedToken, GenerationRequest, WeightUpdate
from skerry.island_agent.agent import Agent
from skerry.island_agent.config import AgentConfig
from skerry.island_agent.fetch import FetchConfig
from skerry.island_agent.service import Ending, ServiceConfig, serve
from tests.island_agent.engines import ByteEngine


def tell(event: str) -> None:
    print(event, flush=True)


class Outside(ByteEngine):
    """`trouble`: install-hangs, load-hangs, resume-fails-once, resume-fails, tokens-wait."""

    def __init__(self, state: Path, trouble: str) -> None:
        super().__init__()
        self._state = state
        self._trouble = trouble
        self._failed = 0
        self.paused = state.exists() and state.read_text() == "paused"

    async def load(self, directory: Path, version: int) -> None:
        tell(f"loading {version}")
        if self._trouble == "load-hangs":
            await asyncio.Event().wait()
        await super().load(directory, version)

    async def pause(self) -> None:
        await super().pause()
        self._state.write_text("paused")

    async def install(self, update: WeightUpdate) -> None:
        tell(f"installing {update.version}")
        if self._trouble == "install-hangs":
            await asyncio.Event().wait()
        await super().install(update)

    async def resume(self) -> None:
        if self._trouble == "resume-fails" or (
            self._trouble == "resume-fails-once" and not self._failed
        ):
            self._failed += 1
            tell("resume fails")
            raise ConnectionError("500")
        await super().resume()
        self._state.write_text("running")
        tell("resumed")

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[GeneratedToken, None]:
        number = 0
        async for token in super().generate(request):
            if number == 1 and self._trouble == "tokens-wait":
                tell("generating")
                while not self._state.with_name("go-on").exists():
                    await asyncio.sleep(0.01)
            number += 1
            yield token


async def main(address: str, directory: Path, state: Path, trouble: str, shutdown_s: float) -> int:
    config = AgentConfig(
        directory=directory,
        poll_s=0.01,
        idle_poll_s=0.05,
        retry_s=0.01,
        retry_limit_s=0.05,
        threads=1,
        fetch=FetchConfig(attempts=2, backoff_s=0.01),
    )
    reader = BulletinReader(open_store(address))
    agent = Agent(config, reader, engines={"a": Outside(state, trouble)})
    listener = socket.create_server(("127.0.0.1", 0))
    tell(f"port {listener.getsockname()[1]}")
    ending: Ending = await serve(agent, ServiceConfig(shutdown_s=shutdown_s), listener=listener)
    code = 3 if ending.paused else 0
    if ending.late:
        os._exit(code)
    return code


if __name__ == "__main__":
    where, island, engine, what, limit = sys.argv[1:]
    sys.exit(asyncio.run(main(where, Path(island), Path(engine), what, float(limit))))
