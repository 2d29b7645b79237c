"""How many threads encode and decode, where nobody says, and who comes first."""

from __future__ import annotations

import os
import sys
import threading

_NICE = 10  # of -20 to 19: about a tenth of a processor that others want as well


def usable_cpus() -> int:
    """Return how many CPUs this process may run on."""
    affinity = getattr(os, "sched_getaffinity", None)
    return (os.cpu_count() or 1) if affinity is None else len(affinity(0))


def thread_count(threads: int | None) -> int:
    """Return `threads`, or one for each usable CPU.  Raises ValueError for less than one."""
    if threads is not None and threads < 1:
        raise ValueError(f"threads: expected 1 or more, found {threads}")
    return usable_cpus() if threads is None else threads


def give_way() -> None:
    """Let the other threads of this process come first, for this thread and those it will start.

    On Linux, where threads have priorities of their own; elsewhere it does nothing.
    """
    if sys.platform == "linux":
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, max(_NICE, os.getpriority(os.PRIO_PROCESS, thread)))
