"""Where an install's time and bytes went: by the step boundaries that it passed, and by phase."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

PHASES = (
    "manifest",  # the log was read
    "fetch",  # objects were read from the store
    "decode",  # packs became words; of a full version, were applied beside the mirror
    "verify",  # what was written was hashed again; a full version was hashed as it came
    "journal",  # the install record was written
    "apply",  # words were written into the mirror, or the new directory took its place
    "pause",  # the engine that took longest: until it made no more tokens,
    "scatter",  # until it held the new words,
    "resume",  # until it made tokens again
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """What one phase of an install took."""

    seconds: float = 0.0
    nbytes: int = 0


@dataclass(slots=True, kw_only=True)
class StopWatch:
    """Marks are the names in `hooks`; the last time that one was passed counts.

    `note` adds what no mark tells.  No clock makes a phase shorter than nothing.  A mark that was
    never passed, as in an install that failed and was finished later, counts as the one before.
    """

    clock: Callable[[], float] = time.perf_counter
    _began: float = 0.0
    _marks: dict[str, float] = field(default_factory=dict)
    _noted: dict[str, Phase] = field(default_factory=dict)

    def start(self) -> None:
        """Begin an install.  What `note` said of the log before belongs to it."""
        self._marks.clear()
        self._noted = {name: at for name, at in self._noted.items() if name == "manifest"}
        self._began = self.clock()

    def mark(self, step: str) -> None:
        self._marks[step] = self.clock()

    def note(self, phase: str, *, seconds: float = 0.0, nbytes: int = 0) -> None:
        """Say what a phase took."""
        self._noted[phase] = Phase(seconds=max(0.0, seconds), nbytes=nbytes)

    def seconds(self) -> dict[str, float]:
        """Split an install; a full version has no record to write."""
        spooled = self._marks.get("objects-spooled", self._began)
        decoded = self._marks.get("decoded", self._marks.get("assembled", spooled))
        recorded = self._marks.get("journal-durable", decoded)
        switched = self._marks.get("engines-switched", recorded)
        return {
            "fetch_s": max(0.0, spooled - self._began),
            "stage_s": max(0.0, decoded - spooled),
            "journal_s": max(0.0, recorded - decoded),
            "apply_s": max(0.0, self._marks.get("marker-moved", switched) - switched),
        }

    def phases(self) -> Mapping[str, Phase]:
        """Return every phase of an install, in order."""
        marks = self._marks
        spooled = marks.get("objects-spooled", self._began)
        noted = {name: self._noted.get(name, Phase()) for name in PHASES}
        if "decoded" in marks:
            recorded = marks.get("journal-durable", marks["decoded"])
            switched = marks.get("engines-switched", recorded)
            written = marks.get("words-written", switched)
            checked = marks.get("leaves-checked", written)
            verify, decode = checked - written, recorded - spooled - noted["journal"].seconds
            apply = marks.get("marker-moved", checked) - switched - verify
        else:
            verified = marks.get("full-verified", spooled)
            built = marks.get("assembled", verified)
            moved = marks.get("marker-moved", built)
            verify, decode, apply = verified - spooled, built - verified, moved - built
        timed = {
            "fetch": spooled - self._began,
            "decode": decode,
            "verify": verify,
            "apply": apply,
        }
        return {
            name: Phase(seconds=max(0.0, timed.get(name, at.seconds)), nbytes=at.nbytes)
            for name, at in noted.items()
        }


def describe(phases: Mapping[str, Phase]) -> str:
    """Return `fetch=0.120s/345B decode=...`, for one line of a log."""
    return " ".join(f"{name}={at.seconds:.4f}s/{at.nbytes}B" for name, at in phases.items())
