"""How long something takes, and how much memory it needs on top of what is there before.

Memory is the highest resident set of this process during the call, less the resident set just
before (Linux: the kernel's own peak, reset through /proc/self/clear_refs), so it counts results and
every temporary array, and weights that are resident already not at all.  A program that runs
meanwhile has its own peak added, as last seen before it ended.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from skerry.benchmarks.memory import status_bytes, trim

T = TypeVar("T")

ENOUGH_S = 2.0  # of measured time, after which nothing is repeated
_MOST = 9  # repetitions: neighbours of a virtual machine take their share of it in turns
_LOOK_S = 0.002  # between two looks at a program's memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The shortest of some runs; the first run's memory, None where the kernel does not tell."""

    seconds: float
    peak_bytes: int | None


@dataclass(slots=True)
class _Programs:
    """What the programs of the run under way have used."""

    seconds: float = 0.0
    peak_bytes: int = 0
    ran: bool = False


_programs = _Programs()


def measure(
    work: Callable[[], T],
    *,
    prepare: Callable[[], object] = lambda: None,
    enough_s: float = ENOUGH_S,
) -> tuple[T, Measured]:
    """Run `work` once or some times, `prepare` before each run; return its first result, too.

    It is not repeated any more once all runs together have taken `enough_s`.
    """
    prepare()
    before = _reset_peak()
    result, seconds = _timed(work)
    peak = None if before is None else max(status_bytes("VmHWM") - before, 0) + _programs.peak_bytes
    runs, spent, shortest = 1, seconds, seconds
    while runs < _MOST and spent < enough_s:
        prepare()
        _, seconds = _timed(work)
        runs, spent, shortest = runs + 1, spent + seconds, min(shortest, seconds)
    return result, Measured(seconds=shortest, peak_bytes=peak)


def _timed(work: Callable[[], T]) -> tuple[T, float]:
    global _programs
    _programs = _Programs()
    began = time.perf_counter()
    result = work()
    seconds = time.perf_counter() - began
    return result, _programs.seconds if _programs.ran else seconds


def run_program(command: Sequence[str]) -> None:
    """Run a program to its end; the measurement under way counts its time and memory as its own.

    Raises CalledProcessError unless it ends with 0.
    """
    began = time.perf_counter()
    program = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    peak = 0
    while program.poll() is None:
        peak = max(peak, status_bytes("VmHWM", program.pid))
        time.sleep(_LOOK_S)
    assert program.stderr is not None
    with program.stderr:
        said = program.stderr.read()
    if program.returncode:
        raise subprocess.CalledProcessError(program.returncode, list(command), stderr=said)
    _programs.seconds += time.perf_counter() - began
    _programs.peak_bytes = max(_programs.peak_bytes, peak)
    _programs.ran = True


def _reset_peak() -> int | None:
    """Forget the highest resident set; return the present one, None if that cannot be done."""
    try:
        trim()
        Path("/proc/self/clear_refs").write_text("5")
        return status_bytes("VmRSS")
    except OSError:
        return None
