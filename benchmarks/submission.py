"""The form that every result file begins with: what was run, of which version, on which machine.

A file is one JSON object: `form` as below, `settings`, and what the benchmark found.  `by` and
`notes` are for whoever submits it (docs/benchmarks.md); `problems` says what a file lacks.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from skerry.benchmarks.machine import machine
from skerry.codec import kernel

FORMAT = 1
MAX_BYTES = 1_000_000
_FIELDS: Mapping[str, Any] = {
    "format": int, "benchmark": str, "skerry": str, "commit": (str, type(None)), "command": str,
    "date": str, "seconds": (int, float), "machine": dict, "by": (str, type(None)),
    "notes": (str, type(None)),
}  # fmt: skip
_STATUS = ("status", "--porcelain", "-uno", "--")
_OF_MACHINE = ("cpu", "cores", "memory_bytes", "system", "load", "kernel", "python")


class Submission:
    """One run of a benchmark, from its beginning: the load is then that of others."""

    def __init__(self, benchmark: str, settings: Mapping[str, object]) -> None:
        self._benchmark = benchmark
        self._settings = settings
        self.machine = machine(kernel.current().name)
        self._began = time.monotonic()
        self._date = datetime.now(UTC).replace(microsecond=0).isoformat()

    @property
    def seconds(self) -> float:
        """How long the run has taken so far."""
        return time.monotonic() - self._began

    def document(self, found: Mapping[str, object]) -> dict[str, Any]:
        """Return the whole result file."""
        form = {
            "format": FORMAT,
            "benchmark": self._benchmark,
            "skerry": metadata.version("skerry"),
            "commit": _commit(),
            "command": " ".join(["skerry bench", self._benchmark, *_arguments(self._benchmark)]),
            "date": self._date,
            "seconds": round(self.seconds, 1),
            "machine": self.machine,
            "by": None,
            "notes": None,
        }
        return {"form": form, "settings": dict(self._settings), **found}


def write(path: Path, document: Mapping[str, object]) -> None:
    """Write a result file; the directory is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")


def deliver(document: Mapping[str, object], *, save: Path | None, as_json: bool) -> bool:
    """Write a result file and print it as JSON, as asked for; return whether it was printed."""
    if save is not None:
        write(save, document)
    if as_json:
        print(json.dumps(document))
    return as_json


def problems(path: Path) -> Iterator[str]:
    """Yield what is wrong with a result file that is to be submitted."""
    if path.stat().st_size > MAX_BYTES:
        yield f"at most {MAX_BYTES:,} bytes, found {path.stat().st_size:,}"
    try:
        document = json.loads(path.read_text())
    except ValueError as error:
        yield f"expected JSON: {error}"
        return
    form = document.get("form") if isinstance(document, dict) else None
    if not isinstance(form, dict):
        yield "expected an object with a form, found none: run the benchmark with --json"
        return
    for name, kind in _FIELDS.items():
        if name not in form or not isinstance(form[name], kind):
            yield f"form.{name}: missing, or of another type"
    for name in _OF_MACHINE:
        if name not in (form.get("machine") or {}):
            yield f"form.machine.{name}: missing"
    if not isinstance(document.get("settings"), dict):
        yield "settings: missing"


def _arguments(benchmark: str) -> list[str]:
    """Return what followed the benchmark's name on the command line."""
    words, name = sys.argv[1:], benchmark.split()[-1]
    return words[words.index(name) + 1 :] if name in words else []


def _commit() -> str | None:
    """Return the commit of the checkout that this is, with + if files other than results differ.

    None elsewhere.
    """
    here = Path(__file__).resolve().parent

    def git(*words: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(here), *words], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    try:
        tracked = git("ls-files", Path(__file__).name)
        if not tracked:
            return None  # installed inside a checkout of something else
        changed = git(*_STATUS, ":/", f":(exclude,top){here.name}/results")
        return git("rev-parse", "HEAD") + "+" * bool(changed)
    except (OSError, subprocess.CalledProcessError):
        return None
