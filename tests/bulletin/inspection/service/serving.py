"""The service itself on a port of this host, beside the test."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn
from fastapi import FastAPI

from skerry.benchmarks.synthetic_run import SIGNER, Shape, make_run
from skerry.bulletin.inspection.follower import Follower
from skerry.bulletin.inspection.pace import Pace
from skerry.bulletin.inspection.service.app import create_app
from skerry.bulletin.inspection.service.config import ServiceConfig
from skerry.bulletin.listener import listen
from skerry.bulletin.store import ObjectStore
from skerry.bulletin.stores.memory import MemoryStore
from skerry.bulletin.writer import now_ms

# Everything that a run can have, in few versions.
SMALL = Shape(
    versions=60, islands=42, layers=3, width=8, anchor_every=20, rollback_every=25, skip_over=16,
    retired=8,
)  # fmt: skip
QUICK = Pace(log_watched_s=0.05, islands_watched_s=0.05)


def small_run() -> MemoryStore:
    store = MemoryStore()
    make_run(store, SMALL, now_ms=now_ms())
    return store


@dataclass(frozen=True)
class Reply:
    """One answer."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Served:
    """A running service."""

    url: str
    follower: Follower

    def get(self, path: str, **headers: str) -> Reply:
        """Ask for a path below the API, or for one that starts with a slash."""
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        url = self.url + (path if path.startswith("/") else f"/api/v1/{path}")
        return ask(urllib.request.Request(url, headers=names))

    def until(self, state: str) -> None:
        """Wait until the store is in a state, as the service tells it."""
        self._until(lambda: self.get("/health").json["store"]["state"] == state)

    def until_islands_are_seen(self) -> None:
        self._until(lambda: self.follower.snapshot.islands.looked_ms is not None)

    def until_island(self, name: str) -> None:
        """Wait until an island's status has been seen."""
        self._until(lambda: name in self.follower.snapshot.islands.reports)

    def _until(self, reached: Callable[[], bool]) -> None:
        changed = threading.Event()
        end = self.follower.listen(changed.set)
        deadline = time.monotonic() + 60
        while not reached():
            assert time.monotonic() < deadline, self.get("/health").json
            changed.wait(0.05)  # being slow, and being well again, are no changes
            changed.clear()
        end()


def ask(request: urllib.request.Request) -> Reply:
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return Reply(answer.status, _lower(answer.headers.items()), answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return Reply(error.code, _lower(error.headers.items()), error.read())


def _lower(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers}


@contextmanager
def serving(
    store: ObjectStore,
    *,
    config: ServiceConfig | None = None,
    pace: Pace = QUICK,
    pinned: bool = True,
    wait_for: str | None = "ok",
) -> Iterator[Served]:
    """Serve a store on any free port."""
    config = config or ServiceConfig(port=0)
    follower = Follower(store, pinned_key=SIGNER.public_key if pinned else None, pace=pace)
    app = create_app(follower, config, address="memory://test")
    with listening(app, config, [follower]) as url:
        served = Served(url, follower)
        if wait_for is not None:
            served.until(wait_for)
        if wait_for == "ok":
            served.until_islands_are_seen()
        yield served


@contextmanager
def listening(app: FastAPI, config: ServiceConfig, followers: Sequence[Follower]) -> Iterator[str]:
    """Serve an application, and let its followers follow; yields its address."""
    server = uvicorn.Server(
        uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=1)
    )
    with listen(config.host, config.port) as listener:
        port = listener.getsockname()[1]
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        for follower in followers:
            follower.start()
        thread.start()
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            for follower in followers:
                follower.stop()
            server.should_exit = True
            thread.join(30)
