"""Stand-in engines with routes of their own, behind one gate and one real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from skerry.inference.config import GateConfig, ServerConfig
from skerry.inference.decision import KnownVersions
from skerry.inference.engine import EngineError, PassedAnswer, PassedRequest
from skerry.inference.gate import AdmissionGate
from skerry.inference.server import create_app
from tests.inference.serving import serve
from tests.inference.stand_in import Checkpoints, StandInEngine

CHAT, TOKENS = "/v1/chat/completions", "/inference/v1/generate"
OLD, NEW = 5, 6


@dataclass(eq=False)
class Call:
    """One request that an engine was asked; the test feeds its answer, None ends it."""

    request: PassedRequest
    answer: asyncio.Queue[bytes | Exception | None] = field(default_factory=asyncio.Queue)
    ended: bool = False


class PassingStandIn(StandInEngine):
    """See `PassingEngine`.  `refusal` is raised by the next call."""

    routes = (CHAT, TOKENS)

    def __init__(self) -> None:
        super().__init__()
        self.asked: asyncio.Queue[Call] = asyncio.Queue()
        self.refusal: EngineError | None = None
        self.status = 200
        self.content_type = "application/json"

    @asynccontextmanager
    async def ask(self, request: PassedRequest) -> AsyncIterator[PassedAnswer]:
        refusal, self.refusal = self.refusal, None
        if refusal is not None:
            raise refusal
        call = Call(request)
        self.asked.put_nowait(call)
        try:
            yield PassedAnswer(
                status=self.status, content_type=self.content_type, pieces=_pieces(call)
            )
        finally:
            call.ended = True


async def _pieces(call: Call) -> AsyncIterator[bytes]:
    while (piece := await call.answer.get()) is not None:
        if isinstance(piece, Exception):
            raise piece
        yield piece


class Island:
    """Engines `a` and `b` (both at OLD) with routes of their own, and `c`, which has none."""

    def __init__(self, root: Path, config: ServerConfig) -> None:
        self.checkpoints = Checkpoints(root)
        self.a, self.b, self.c = PassingStandIn(), PassingStandIn(), StandInEngine()
        self.engines = {"a": self.a, "b": self.b, "c": self.c}
        self.gate = AdmissionGate(self.engines, config=GateConfig(resume_backoff_s=0.0))
        self.app = create_app(self.gate, self.engines, config=config)
        self.url = ""
        self.loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> None:
        self.loop = asyncio.get_running_loop()
        for name, engine in self.engines.items():
            path = self.checkpoints.path(OLD)
            await self.gate.reload(name, OLD, partial(engine.load, path, OLD))
        self.gate.tell(KnownVersions(newest=OLD))

    async def swap(self, name: str, drain_s: float | None = None) -> None:
        engine, update = self.engines[name], self.checkpoints.update(OLD, NEW)
        await engine.stage(update)
        await self.gate.swap(name, NEW, lambda: engine.install(update), drain_s=drain_s)

    async def swapping(self, name: str) -> None:
        """Return when a swap has closed the engine to whom it excludes."""
        while self.gate.view()[name].target is None:
            await asyncio.sleep(0)


@contextmanager
def passing_island(root: Path, config: ServerConfig | None = None) -> Iterator[Island]:
    """Run an island until the block ends."""
    island = Island(root, config or ServerConfig())
    with serve(island.app, island.start) as url:
        island.url = url
        yield island
