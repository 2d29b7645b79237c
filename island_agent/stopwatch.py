"""Where an install's time went, by the step boundaries that it passed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class StopWatch:
    """Marks are the names in `hooks`; the last time that one was passed counts."""

    clock: Callable[[], float] = time.perf_counter
    _began: float = 0.0
    _marks: dict[str, float] = field(default_factory=dict)

    def start(self) -> None:
        self._marks.clear()
        self._began = self.clock()

    def mark(self, step: str) -> None:
        self._marks[step] = self.clock()

    def seconds(self) -> dict[str, float]:
        """Split an install that reached `marker-moved`; a full version has no record to write."""
        spooled = self._marks["objects-spooled"]
        decoded = self._marks.get("decoded", self._marks.get("assembled", spooled))
        recorded = self._marks.get("journal-durable", decoded)
        return {
            "fetch_s": spooled - self._began,
            "stage_s": decoded - spooled,
            "journal_s": recorded - decoded,
            "apply_s": self._marks["marker-moved"] - recorded,
        }
