"""Islands that die and come back: `python -m tests.island_agent.soak STORE ISLAND LOG`.

This process imports what an agent needs and does nothing else, so that it can fork one at once.
Each line on standard input is a life as JSON: `{"step", "occurrence", "delay_s", "flip", "last"}`.
The life ends by kill -9 when `step` ("" is any) was passed so many times, or `delay_s` after that;
at latest half a second after it began to serve; or in order, once `last` is served and scrubbed.
`flip` damages the mirror at rest first, in a place that the number chooses.  One line on standard
output says how it ended: the signal, or 0.

The life appends to LOG: `T version label weights` for every token, with the version that the engine
gave it, the gate's label at that moment, and the digest of the weights in the engine's memory;
`F file` for a flip, and `S step` for the repair steps and full versions.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from collections.abc import AsyncGenerator
from pathlib import Path
from random import Random

from skerry.bulletin.log import BulletinReader
from skerry.bulletin.stores import LocalStore
from skerry.inference.accepted import AcceptedVersions, VersionRange
from skerry.inference.engine import EngineBroken, GeneratedToken, GenerationRequest
from skerry.inference.errors import WeightVersionError
from skerry.island_agent.agent import Agent
from skerry.island_agent.config import AgentConfig
from skerry.island_agent.hooks import Hook
from skerry.island_agent.marker import Held
from tests.island_agent.crash import ender
from tests.island_agent.engines import ByteEngine

_LATEST_S = 0.5
_ANY = AcceptedVersions(ranges=(VersionRange(0, 2**62),))
_REQUEST = GenerationRequest(prompt=(1,), max_tokens=2)


class HonestEngine(ByteEngine):
    """Hashes its weights for every token, and says what it found: `found`."""

    found = ""

    async def generate(self, request: GenerationRequest) -> AsyncGenerator[GeneratedToken, None]:
        async for token in super().generate(request):
            self.found = await self.weights_digest()
            yield token


class Life:
    def __init__(self, store: Path, island: Path, log: Path, plan: dict[str, object]) -> None:
        self.plan = plan
        self.log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self.engine = HonestEngine()
        config = AgentConfig(
            directory=island,
            announce=False,
            poll_s=0.001,
            idle_poll_s=0.005,
            retry_s=0.001,
            retry_limit_s=0.01,
            threads=1,
            verify_engines=True,  # what is flipped just before a load must not be served
            scrub_bytes_per_s=2**40,
            scrub_pass_s=0.0,
        )
        self.agent = Agent(
            config, BulletinReader(LocalStore(store)), engines={"a": self.engine}, hook=self.hook()
        )

    def hook(self) -> Hook:
        kill = ender(
            int(signal.SIGKILL),
            str(self.plan["step"]),
            int(str(self.plan["occurrence"])),
            float(str(self.plan["delay_s"])),
        )

        def hook(step: str) -> None:
            if step.startswith("repair-") or step == "assembled":
                self.write(f"S {step}")
            if self.plan["step"] is not None:
                kill(step)

        return hook

    def write(self, line: str) -> None:
        os.write(self.log, line.encode() + b"\n")

    async def live(self) -> None:
        await self.agent.open()
        running = asyncio.create_task(self.agent.run())
        client = asyncio.create_task(self.ask())
        while self.agent.state.held is None:
            await asyncio.sleep(0.001)
        if self.plan["step"] is not None:
            timer = threading.Timer(_LATEST_S, os.kill, (os.getpid(), signal.SIGKILL))
            timer.daemon = True
            timer.start()
        if self.plan["flip"] is not None:
            self.flip(Random(int(str(self.plan["flip"]))))
        await self.done()
        client.cancel()
        self.agent.stop()
        await running
        await self.agent.close()

    async def done(self) -> None:
        """Return when the last version is served and was scrubbed since."""
        at: tuple[Held | None, int] = (None, 0)
        while True:
            held, scrub = self.agent.state.held, self.agent.state.scrub
            if held != at[0]:
                at = held, scrub.passes
            served = self.agent.gate.view()["a"].version
            sound = scrub.passes >= at[1] + 2 and not scrub.suspects
            if held is not None and served == held.version == self.plan["last"] and sound:
                return
            await asyncio.sleep(0.001)

    async def ask(self) -> None:
        while True:
            try:
                async with self.agent.gate.admit(_ANY, 0.01):
                    async for token in self.engine.generate(_REQUEST):
                        label = self.agent.gate.view()["a"].version
                        self.write(f"T {token.version} {label} {self.engine.found}")
            except (WeightVersionError, EngineBroken):
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.002)

    def flip(self, dice: Random) -> None:
        """Damage one byte of the mirror, as a disk would: past everything that could notice."""
        files = sorted(path for path in self.agent.mirror.directory.rglob("*") if path.is_file())
        path = dice.choice(files)
        fd = os.open(path, os.O_RDWR)
        at = dice.randrange(os.fstat(fd).st_size)
        (byte,) = os.pread(fd, 1, at)
        os.pwrite(fd, bytes([byte ^ 1 << dice.randrange(8)]), at)
        os.close(fd)
        self.write(f"F {path.name}")


def main() -> None:
    store, island, log = map(Path, sys.argv[1:])
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                asyncio.run(Life(store, island, log, json.loads(line)).live())
                code = 0
            finally:
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(child, 0)
        ended = os.WTERMSIG(status) if os.WIFSIGNALED(status) else -os.WEXITSTATUS(status)
        print(ended, flush=True)


if __name__ == "__main__":
    main()
