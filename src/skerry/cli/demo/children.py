"""The demo's processes: started with a log file each, and ended by id, whatever happens."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

_TERMINATE_S = 20.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM)

# The signals that came.  What a handler raises is lost when it happens to interrupt a finalizer, so
# whoever waits for children looks here, too.
_received: list[int] = []
_STATUS_S = 5.0


class ChildFailed(Exception):
    """A process of the demo ended on its own: its log says why."""


@dataclass(slots=True, kw_only=True)
class Child:
    """One process."""

    name: str
    log: Path
    process: subprocess.Popen[bytes]

    def check(self) -> None:
        """Raise ChildFailed if the process has ended with an error, SystemExit after a signal."""
        if _received:
            raise SystemExit(128 + _received[0])
        code = self.process.poll()
        if code:
            tail = self.log.read_text(errors="replace").splitlines()[-5:]
            said = " | ".join(tail)
            raise ChildFailed(f"{self.name} ended with {code}; {self.log} says: {said}")

    @property
    def running(self) -> bool:
        return self.process.poll() is None


@dataclass(slots=True, kw_only=True)
class Island:
    """An agent with its engine, and where its gate listens."""

    name: str
    url: str
    directory: Path
    child: Child

    def status(self) -> Mapping[str, Any] | None:
        """Return what `/status` says, or None while nobody answers."""
        try:
            with urllib.request.urlopen(f"{self.url}/status", timeout=_STATUS_S) as answer:
                value = json.load(answer)
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            return None
        return value if isinstance(value, dict) else None


@contextmanager
def children() -> Iterator[list[Child]]:
    """Collect children in the list; all of them have ended when the context has.

    That holds after SIGINT and SIGTERM, too: either unwinds the stack.
    """
    started: list[Child] = []
    _received.clear()
    before = {number: signal.signal(number, _unwind) for number in _SIGNALS}
    try:
        yield started
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for child in started:
            child.process.terminate()
        deadline = time.monotonic() + _TERMINATE_S
        for child in started:
            try:
                child.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()


def _unwind(number: int, frame: FrameType | None) -> NoReturn:
    _received.append(number)
    raise SystemExit(128 + number)


def start(
    name: str,
    directory: Path,
    module: str,
    arguments: Sequence[str],
    *,
    threads: int,
    python: str = sys.executable,
    env: Mapping[str, str] | None = None,
) -> Child:
    """Start `python -m module` with its output in a log file below `directory`.

    `threads` bounds what OpenMP takes: threads that wait for a core of others spin on their own.
    """
    log = directory / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [python, "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": str(threads), **(env or {})},
        )
    return Child(name=name, log=log, process=process)


def free_port() -> int:
    """Return a port of the loopback interface that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
