"""How many threads encode and decode, where nobody says."""

from __future__ import annotations

import os


def usable_cpus() -> int:
    """Return how many CPUs this process may run on."""
    affinity = getattr(os, "sched_getaffinity", None)
    return (os.cpu_count() or 1) if affinity is None else len(affinity(0))


def thread_count(threads: int | None) -> int:
    """Return `threads`, or one for each usable CPU.  Raises ValueError for less than one."""
    if threads is not None and threads < 1:
        raise ValueError(f"threads: expected 1 or more, found {threads}")
    return usable_cpus() if threads is None else threads
