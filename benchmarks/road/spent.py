"""What this process spends between two moments: CPU seconds, and memory on top of what it had."""

from __future__ import annotations

import resource
from dataclasses import dataclass, field

from skerry.benchmarks.memory import MemorySampler, status_bytes


def cpu_seconds() -> float:
    """Return the CPU seconds of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


@dataclass(slots=True)
class Spent:
    """Counts from when it is made."""

    _cpu_s: float = field(default_factory=cpu_seconds)
    _resident: int = field(default_factory=lambda: status_bytes("VmRSS"))
    _sampler: MemorySampler = field(default_factory=MemorySampler)

    def told(self) -> dict[str, float]:
        """Return both, and count no more."""
        self._sampler.stop()
        grown = max(self._sampler.resident, status_bytes("VmRSS")) - self._resident
        return {"cpu_s": cpu_seconds() - self._cpu_s, "peak_bytes": max(grown, 0)}
