"""What the benchmark found, as written to JSON: bytes, seconds and exact ratios, no rounding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Bytes of weights a second, and memory on top of the weights, at one number of threads.

    `threads` None: as many as the codec itself takes.
    """

    threads: int | None
    encode: float
    decode: float  # and apply, in place
    encode_peak_bytes: int | None
    decode_peak_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One codec on one case, proven exact; or `missing`, and why."""

    codec: str
    used_by: str
    weights_bytes: int = 0  # that were measured: all of the case, or a slice
    changed: int = 0  # of these
    encoded_bytes: int = 0
    speeds: Sequence[Speed] = ()
    missing: str | None = None

    @property
    def bytes_per_changed(self) -> float:
        return self.encoded_bytes / max(self.changed, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One phase of our own codec, and its speed beside that of a warm copy of as many bytes."""

    name: str
    threads: int
    speed: float
    of_memcpy: float
    of_memcpy_1: float  # of one thread's copy


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One pair of weights."""

    name: str
    source: str  # "trace" | "simulated"
    dtype: str
    weights_bytes: int
    words: int
    changed: int
    bound: float  # bytes per changed word, given the old exponents
    free_bound: float  # the same without any context
    memcpy: Mapping[int, float]  # bytes a second by threads, at the time
    rows: Sequence[Row]
    phases: Sequence[Phase]


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """One run: the machine, and every case."""

    machine: Mapping[str, object]
    cases: Sequence[Case]
    seconds: float
