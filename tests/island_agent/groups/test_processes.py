"""Four engine processes in two groups over two agents: killed, cut off, and never mixed.

Every token that reached a gate is held against the weights that made it and the time at which it
was made: no token carries a wrong version, and of one group no two versions were made in turns.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from skerry.bulletin.stores import LocalStore
from tests.island_agent.groups.nursery import TOKEN
from tests.island_agent.groups.remote import token_of
from tests.island_agent.runs import make_run

ROOT = Path(__file__).parents[3]
AGENTS, ENGINES = ("a", "b"), ("x", "y")
GROUPS = ("one=a/x+b/x", "two=a/y+b/y")
LIMIT_S = 120.0

COORDINATOR = tuple(
    f"group-coordinates-{phase}" for phase in ("claim", "prepare", "commit", "decide", "teach")
)
MEMBER = (
    "group-claim", "group-prepare", "journal-durable", "group-prepared", "group-commit",
    "group-installed", "group-voted", "group-accept", "group-learn", "words-written",
    "marker-moved",
)  # fmt: skip
Trouble = tuple[str, str, str]  # what, at which agent's, which step


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [it.getsockname()[1] for it in sockets]
    for it in sockets:
        it.close()
    return ports


class Island:
    """The processes, and what is asked of them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.run = make_run(store=LocalStore(root / "store"), words=400)
        ports = iter(free_ports(6))
        self.ports = {name: next(ports) for name in AGENTS}
        self.engine_ports = {f"{a}/{e}": next(ports) for a in AGENTS for e in ENGINES}
        self.pids: dict[str, int] = {}
        self.nursery = subprocess.Popen(
            [sys.executable, "-m", "tests.island_agent.groups.nursery"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in (*self.engine_ports, *self.ports):
            self.start(name)

    def start(self, name: str) -> None:
        told: dict[str, object] = {"root": str(self.root), "name": name}
        if name in self.engine_ports:
            told |= {"kind": "engine", "port": self.engine_ports[name]}
        else:
            told |= {
                "kind": "agent",
                "port": self.ports[name],
                "peers": [f"{n}=http://127.0.0.1:{p}" for n, p in self.ports.items()],
                "groups": GROUPS,
                "engines": {e: self.engine_ports[f"{name}/{e}"] for e in ENGINES},
            }
        assert self.nursery.stdin is not None
        assert self.nursery.stdout is not None
        self.nursery.stdin.write(json.dumps(told) + "\n")
        self.nursery.stdin.flush()
        self.pids[name] = int(self.nursery.stdout.readline())

    def is_alive(self, name: str) -> bool:
        try:
            os.kill(self.pids[name], 0)
        except ProcessLookupError:
            return False
        return True

    def kill(self, name: str) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pids[name], signal.SIGKILL)
        self.until(lambda: not self.is_alive(name), f"the end of {name}")

    def until(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + LIMIT_S
        while not holds():
            assert time.monotonic() < deadline, f"{what}: {self.told()}"
            time.sleep(0.02)

    def groups(self, name: str) -> dict[str, Any]:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.ports[name]}/control/groups",
            headers={"Authorization": f"Bearer {TOKEN}"},
        )
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                found: dict[str, Any] = json.load(answer)
        except (urllib.error.URLError, OSError):
            return {}
        return found

    def told(self) -> dict[str, Any]:
        logs = [path.read_text()[-3000:] for path in sorted(self.root.glob("log-[ab]"))]
        return {"groups": {name: self.groups(name) for name in AGENTS}, "logs": logs}

    def serves(self, version: int) -> bool:
        def at(name: str) -> bool:
            found = self.groups(name)
            return len(found) == len(GROUPS) and all(
                group["version"] == version and group["serving"] and not group["in_doubt"]
                for group in found.values()
            )

        return all(map(at, AGENTS))

    def publish(self) -> int:
        seed = len(self.run.versions)
        return self.run.publish(self.run.versions[-1].mutated(seed, 0.05))

    def meet(self, trouble: Trouble) -> None:
        """Publish a version, have the trouble happen on the way, mend it, and come to serve."""
        what, where, step = trouble
        other = next(name for name in AGENTS if name != where)
        victims = {
            "agent": [],
            "other agent": [other],
            "engine": [f"{where}/x"],
            "other's engine": [f"{other}/y"],
            "store": [],
        }[what]
        order = {
            "step": step,
            "self": what == "agent",
            "kill": [self.pids[name] for name in victims],
            "cut": what == "store",
        }
        happened = self.root / f"happened-{where}"
        happened.unlink(missing_ok=True)
        (self.root / f"trouble-{where}").write_text(json.dumps(order))
        version = self.publish()
        self.until(happened.exists, f"{trouble} at version {version}")
        for name in [where] if what == "agent" else victims:
            self.until(lambda name=name: not self.is_alive(name), f"the end of {name}")  # type: ignore[misc]
            self.start(name)
        (self.root / "cut").unlink(missing_ok=True)
        self.until(lambda: self.serves(version), f"{version} after {trouble}")

    def close(self) -> None:
        for name in self.pids:
            self.kill(name)
        assert self.nursery.stdin is not None
        assert self.nursery.stdout is not None
        self.nursery.stdin.close()
        self.nursery.stdout.close()
        assert self.nursery.wait() == 0


class Load:
    """Requests to both gates, all the time, from a thread of its own."""

    def __init__(self, island: Island) -> None:
        self.island = island
        self.answers: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), daemon=True)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    async def _main(self) -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session:
            await asyncio.gather(*(self._ask(session, name) for name in AGENTS for _ in range(3)))

    async def _ask(self, session: aiohttp.ClientSession, name: str) -> None:
        url = f"http://127.0.0.1:{self.island.ports[name]}/v1/completions"
        while not self._stop.is_set():
            body = {"prompt": "go on", "max_tokens": 12, "logprobs": 1}
            try:
                async with session.post(url, json=body) as response:
                    answer = await response.json()
                self.answers[str(response.status)] += 1
                if response.status == 200:
                    self._check(answer)
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                self.answers[type(error).__name__] += 1
            await asyncio.sleep(0.01)

    def _check(self, answer: dict[str, Any]) -> None:
        """The answer's own tokens and spans."""
        (choice,) = answer["choices"]
        tokens = [int(token) for token in choice["text"].split()]
        for span in choice.get("weight_versions") or answer["weight_versions"]:
            expected = token_of(self.island.run.versions[int(span["version"])].weights)
            made = tokens[span["start"] : span["end"]]
            if any(token != expected for token in made):
                self.wrong.append(f"{span} of {tokens}, expected {expected}")


def check_tokens(island: Island) -> tuple[Counter[int], Counter[str]]:
    """Hold every token that reached a gate against its weights, and the versions of each group
    against time; return how many tokens each version made, and how often engines were patched and
    taken back."""
    spans: dict[str, dict[int, list[int]]] = defaultdict(dict)
    made: Counter[int] = Counter()
    done: Counter[str] = Counter()
    for line in (island.root / "tokens").read_text().splitlines():
        what, engine, version_text, *rest = line.split()
        if what != "T":
            done[what] += 1
            continue
        token, at = rest
        version = int(version_text)
        assert int(token) == token_of(island.run.versions[version].weights), line
        made[version] += 1
        span = spans[engine.partition("/")[2]].setdefault(version, [int(at), int(at)])
        span[0], span[1] = min(span[0], int(at)), max(span[1], int(at))
    assert set(spans) == set(ENGINES)
    for group, by_version in spans.items():
        ordered = [by_version[version] for version in sorted(by_version)]
        for (_, last), (first, _) in itertools.pairwise(ordered):
            assert last < first, f"group of {group} was mixed: {by_version}"
    return made, done


@pytest.fixture
def island(tmp_path: Path) -> Iterator[Island]:
    it = Island(tmp_path)
    try:
        yield it
    finally:
        it.close()


SHORT: tuple[Trouble, ...] = (
    ("agent", "a", "group-coordinates-decide"),
    ("agent", "b", "group-voted"),
    ("engine", "b", "group-commit"),
    ("store", "a", "group-prepare"),
)
# Twenty versions and more, each with its own trouble: everything at every phase.
LONG: tuple[Trouble, ...] = (
    *(("agent", "a", step) for step in COORDINATOR),
    *(("agent", "a", step) for step in MEMBER),
    *(("agent", "b", step) for step in MEMBER),
    *(("engine", "a", step) for step in (*COORDINATOR, "group-voted", "words-written")),
    *(("other's engine", "a", step) for step in COORDINATOR),
    *(("store", "a", step) for step in (*COORDINATOR, *MEMBER)),
)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("troubles", [SHORT, pytest.param(LONG, marks=pytest.mark.soak)])
def test_groups_are_never_mixed_and_recover_whatever_is_killed_at_any_phase(
    island: Island, troubles: tuple[Trouble, ...]
) -> None:
    began = time.monotonic()
    island.until(lambda: island.serves(0), "version 0")
    with Load(island) as load:
        for trouble in troubles:
            island.meet(trouble)
        version = island.publish()
        island.until(lambda: island.serves(version), "the last version")
    made, done = check_tokens(island)
    assert done["patched"]
    assert done["undone"]
    assert not load.wrong, load.wrong[:3]
    assert load.answers["200"]
    shown = [island.groups(name) for name in AGENTS]
    released = sum(group["released"] for groups in shown for group in groups.values())
    print(
        f"{len(troubles)} troubles, {version} versions in {time.monotonic() - began:.0f} s: "
        f"{made.total()} tokens of {len(made)} versions, {dict(done)}, "
        f"answers {dict(load.answers)}; {released} switches since the last restarts"
    )
