"""Forks engines and agents that are told, and imports only once: `python -m ...nursery`.

Each line of standard input is a child, as JSON; its process id is the line that is answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

from skerry.bulletin.errors import StoreUnavailable
from skerry.bulletin.log import BulletinReader
from skerry.bulletin.stores import LocalStore
from skerry.inference.config import GateConfig
from skerry.inference.gate import AdmissionGate
from skerry.island_agent.agent import Agent
from skerry.island_agent.config import AgentConfig
from skerry.island_agent.fetch import FetchConfig
from skerry.island_agent.groups.config import GroupTimes
from skerry.island_agent.groups.groups import Membership
from skerry.island_agent.groups.http import HttpPeers
from skerry.island_agent.groups.roster import Roster
from skerry.island_agent.service import ServiceConfig, serve
from tests.island_agent.groups.remote import RemoteEngine, serve_engine
from tests.island_agent.stores import TwistedStore

TOKEN = "of-the-operator"
TIMES = GroupTimes(
    look_s=0.1, reply_s=1.0, pause_s=5.0, hold_s=5.0, lost_s=2.0, retry_s=0.1, retry_limit_s=0.5,
    patience_s=10.0,
)  # fmt: skip


class CutStore(TwistedStore):
    """Cut off while the file `flag` is there."""

    def __init__(self, inner: LocalStore, flag: Path) -> None:
        super().__init__(inner)
        self._flag = flag

    def get(self, key: str, *, limit_bytes: int) -> bytes:
        self._meet(key)
        return super().get(key, limit_bytes=limit_bytes)

    def get_range(self, key: str, start: int, stop: int) -> bytes:
        self._meet(key)
        return super().get_range(key, start, stop)

    def _meet(self, key: str) -> None:
        if self._flag.exists():
            raise StoreUnavailable(key, "cut off")


def trouble(root: Path, name: str) -> Any:
    """Return a hook that does, once, what the file `trouble-<agent>` says when a step is passed."""
    order = root / f"trouble-{name}"

    def hook(step: str) -> None:
        with contextlib.suppress(OSError, ValueError):
            told = json.loads(order.read_text())
            if told["step"] != step:
                return
            order.unlink()
            (root / f"happened-{name}").write_text(step)
            for pid in told["kill"]:
                os.kill(pid, signal.SIGKILL)
            if told["cut"]:
                (root / "cut").touch()
            if told["self"]:
                os.kill(os.getpid(), signal.SIGKILL)

    return hook


async def agent(told: dict[str, Any]) -> None:
    root, name = Path(told["root"]), told["name"]
    roster = Roster.parse(told["peers"], told["groups"])
    peers = HttpPeers(roster, TOKEN)
    engines = {
        engine: RemoteEngine(
            f"{name}/{engine}", port, root / f"exchange-{name}-{engine}", root / "tokens"
        )
        for engine, port in told["engines"].items()
    }
    config = AgentConfig(
        directory=root / name,
        island=name,
        poll_s=0.02,
        idle_poll_s=0.2,
        retry_s=0.02,
        retry_limit_s=0.2,
        threads=1,
        announce=False,
        scrub_bytes_per_s=0,
        engine_limit_s=20.0,
        drain_s=5.0,
        fetch=FetchConfig(attempts=1, backoff_s=0.0),
    )
    it = Agent(
        config,
        BulletinReader(CutStore(LocalStore(root / "store"), root / "cut")),
        engines=engines,
        gate=AdmissionGate(engines, config=GateConfig(resume_tries=2, resume_backoff_s=0.05)),
        membership=Membership(roster=roster, peers=peers, times=TIMES),
        hook=trouble(root, name),
    )
    listener = socket.create_server(("127.0.0.1", told["port"]))
    await serve(it, ServiceConfig(control_token=TOKEN, shutdown_s=5.0), listener=listener)
    await peers.close()
    for engine in engines.values():
        await engine.close()


def live(told: dict[str, Any]) -> None:
    log = Path(told["root"]) / f"log-{told['name'].replace('/', '-')}"
    logging.basicConfig(
        filename=log, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    if told["kind"] == "agent":
        asyncio.run(agent(told))
    else:
        directory = Path(told["root"]) / f"exchange-{told['name'].replace('/', '-')}"
        asyncio.run(serve_engine(told["port"], directory))


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                live(json.loads(line))
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        print(child, flush=True)


if __name__ == "__main__":
    main()
