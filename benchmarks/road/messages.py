"""What the benchmark's processes tell each other: one JSON object a line, by pipes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from skerry.benchmarks.processes import stop_process


def say(**fields: object) -> None:
    """Tell the parent."""
    print(json.dumps(fields), flush=True)


def end_in_order() -> None:
    """Have SIGTERM end this process by an exception, so that what it started ends, too."""

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)


def orders() -> Iterator[str]:
    """Yield what the parent says, until it says no more."""
    for line in sys.stdin:
        yield line.strip()


class Child:
    """A process that is asked and answers."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def hear(self) -> Mapping[str, Any]:
        """Return the next answer.  Raises RuntimeError when the process has ended instead."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._process.args!r} ended with {self._process.wait()}")
        answer: Mapping[str, Any] = json.loads(line)
        return answer

    def tell(self, order: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(order + "\n")
        self._process.stdin.flush()

    def ask(self, order: str) -> Mapping[str, Any]:
        self.tell(order)
        return self.hear()

    def end(self) -> None:
        """Close its input, and wait for it to end by itself."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)


@contextmanager
def child(command: Sequence[str], environment: Mapping[str, str]) -> Iterator[Child]:
    """Start a process; it does not outlive the block."""
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=dict(environment)
    )
    try:
        yield Child(process)
    finally:
        stop_process(process, 60)  # longer than a server is given
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()
