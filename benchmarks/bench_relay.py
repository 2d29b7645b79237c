"""Many agents behind one relay: what crosses the WAN, and what does an idle agent take?

`python -m skerry.benchmarks relay`, or `skerry bench relay`.  The bulletin is a directory behind a
web server that counts what it sends; every agent is a process of its own, `skerry agent`, the first
of them a relay and the others behind it.  Beside them one agent that follows the same versions
alone says what one fetch is.
"""

from __future__ import annotations

import json
import os
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Annotated

import typer
import uvicorn
from starlette.responses import FileResponse, Response
from starlette.types import Message, Receive, Scope, Send

from skerry.benchmarks.agent_process import AgentProcess
from skerry.benchmarks.options import AsJson
from skerry.benchmarks.submission import Submission
from skerry.benchmarks.walk import Walk
from skerry.bulletin.errors import InvalidKey
from skerry.bulletin.keys import check_key
from skerry.bulletin.stores.local import LocalStore
from skerry.publisher import Publisher, PublisherConfig

_AT_ONCE = 8  # agents that start together
_START_S = 600.0
_POLL_S = 0.1
_DENSITY = 0.005
_SETTLED_S = 3.0


class CountingServer:
    """Serves a directory over HTTP, with ranges, and counts the bytes of all bodies."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.nbytes = 0
        self.requests = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def counted(message: Message) -> None:
            self.nbytes += len(message.get("body", b""))
            await send(message)

        if scope["type"] != "http":
            return
        self.requests += 1
        await self._answer(scope["path"].removeprefix("/"))(scope, receive, counted)

    def _answer(self, key: str) -> Response:
        with suppress(InvalidKey):
            check_key(key)
            path = self._root / key
            if path.is_file():
                return FileResponse(path)
        return Response(status_code=404)


@contextmanager
def serving(app: CountingServer) -> Iterator[str]:
    """Serve from a thread; yields the address."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    config = uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """What a number of agents took over the WAN, and of this host."""

    agents: int
    versions: int
    weights_bytes: int
    wan_bytes: int
    wan_requests: int
    alone_bytes: int
    alone_requests: int
    private_bytes: float  # of an idle agent behind the relay, the median
    seconds: float


def measure(agents: int, megabytes: float, versions: int, work: Path) -> Crowd:
    """Have a relay and `agents` behind it follow a run from its first version on."""
    store = LocalStore(work / "bulletin")
    config = PublisherConfig(anchor_versions=None, anchor_ratio=None)
    publisher = Publisher.open(store, config=config)
    walk = Walk("BF16", int(megabytes * 1e6), _DENSITY, seed=1)

    def publish(version: int) -> None:
        if version:
            walk.step()
        publisher.publish_arrays(walk.serve(), step=version)

    publish(0)
    began = time.perf_counter()
    with ExitStack() as stack:
        far, lone = CountingServer(work / "bulletin"), CountingServer(work / "bulletin")
        bulletin = stack.enter_context(serving(far))

        def start(name: str, address: str, *words: str) -> AgentProcess:
            process = AgentProcess(address, work / name, *words)
            stack.callback(process.end)
            return process

        alone = start("alone", stack.enter_context(serving(lone)))
        relay = start("relay", bulletin, "--relay")
        _wait([alone, relay], 0)
        crowd: list[AgentProcess] = []
        upstream = f"http://127.0.0.1:{relay.port}/bulletin"
        for first in range(0, agents, _AT_ONCE):
            some = range(first, min(first + _AT_ONCE, agents))
            fresh = [start(f"agent-{n}", bulletin, "--upstream", upstream) for n in some]
            _wait(fresh, 0)
            crowd += fresh
            _tell(f"{len(crowd)} of {agents} agents are up")
        for version in range(1, versions + 1):
            publish(version)
            _wait([alone, relay, *crowd], version)
            _tell(f"version {version} of {versions} is everywhere")
        time.sleep(_SETTLED_S)
        found = Crowd(
            agents=agents,
            versions=versions,
            weights_bytes=sum(t.data.nbytes for t in walk.serve().values()),
            wan_bytes=far.nbytes,
            wan_requests=far.requests,
            alone_bytes=lone.nbytes,
            alone_requests=lone.requests,
            private_bytes=median(agent.private_bytes() for agent in crowd),
            seconds=time.perf_counter() - began,
        )
    publisher.close()
    return found


def _wait(agents: Sequence[AgentProcess], version: int) -> None:
    deadline = time.monotonic() + _START_S
    left = list(agents)
    while left:
        left = [agent for agent in left if agent.version() != version]
        if time.monotonic() > deadline:
            raise RuntimeError(f"{len(left)} of {len(agents)} agents do not reach {version}")
        time.sleep(_POLL_S)


def _tell(what: str) -> None:
    typer.echo(what, err=True)


def relay(
    agents: Annotated[int, typer.Option(min=1, help="Behind the relay.")] = 100,
    megabytes: Annotated[float, typer.Option(min=0.1, help="Of BF16 weights.")] = 20.0,
    versions: Annotated[int, typer.Option(min=1, help="That follow the first.")] = 3,
    as_json: AsJson = False,
) -> None:
    """Put many agents behind one relay, and count what crosses the WAN."""
    settings = {"agents": agents, "megabytes": megabytes, "versions": versions}
    submission = Submission("relay", settings)
    with tempfile.TemporaryDirectory(prefix="skerry-relay-") as name:
        found = measure(agents, megabytes, versions, Path(name))
    if as_json:
        print(json.dumps(submission.document(asdict(found))))
        return
    print(
        f"{found.agents} agents behind one relay, {found.weights_bytes / 1e6:.0f} MB of weights, a "
        f"full version and {found.versions} patches, {found.seconds:.0f} s on {os.cpu_count()} "
        f"cores:\nover the WAN {found.wan_bytes:,} bytes in {found.wan_requests:,} requests; one "
        f"agent alone took {found.alone_bytes:,} bytes in {found.alone_requests:,} requests\n"
        f"({found.wan_bytes / found.alone_bytes:.4f} of one fetch); an idle agent has "
        f"{found.private_bytes / 2**20:.0f} MiB to itself"
    )


if __name__ == "__main__":
    typer.run(relay)
