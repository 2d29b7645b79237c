"""An agent as a process of its own, started by a benchmark and ended by it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any

from skerry.benchmarks.processes import stop_process


class AgentProcess:
    """`skerry agent` on a free port."""

    def __init__(
        self,
        bulletin: str,
        directory: Path,
        *words: str,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        command = [
            sys.executable, "-m", "skerry", "agent", bulletin, "--dir", str(directory),
            "--port", str(self.port), "--threads", "1", *words,
        ]  # fmt: skip
        environment = os.environ | (environment or {})
        with directory.with_suffix(".log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        self._log = directory.with_suffix(".log")

    def version(self) -> int | None:
        """Return the version that its mirror holds; None also while it does not answer.

        Raises RuntimeError when it has ended.
        """
        status = self._status()
        version: int | None = None if status is None else status["agent"]["version"]
        return version

    def served(self) -> set[int | None]:
        """Return the versions that its engines serve; of no engines, or no answer, none.

        Raises RuntimeError when it has ended.
        """
        engines = (self._status() or {"engines": {}})["engines"]
        return {engine["version"] for engine in engines.values()}

    def _status(self) -> Mapping[str, Any] | None:
        if self._process.poll() is not None:
            raise RuntimeError(f"an agent ended: {self._log.read_text()[-2000:]}")
        try:
            with urllib.request.urlopen(f"{self.url}/status", timeout=30) as got:
                status: Mapping[str, Any] = json.load(got)
        except (OSError, HTTPException):
            return None
        return status

    def private_bytes(self) -> int:
        """Return the memory that nobody else has a share of."""
        rollup = Path(f"/proc/{self._process.pid}/smaps_rollup").read_text().splitlines()
        sizes = {line.split()[0]: line.split()[1] for line in rollup[1:]}
        return 1024 * (int(sizes["Private_Clean:"]) + int(sizes["Private_Dirty:"]))

    def end(self) -> None:
        stop_process(self._process, 30)
