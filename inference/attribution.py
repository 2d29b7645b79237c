"""Which version made which token: half-open spans over the output tokens.

Law: the spans of n tokens are disjoint, in order, maximal, and cover 0..n exactly.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The output tokens `start` to `end`, `end` not included, were made by `version`."""

    version: int
    start: int
    end: int

    def to_json(self) -> dict[str, object]:
        return {"version": str(self.version), "start": self.start, "end": self.end}


def spans_of(versions: Iterable[int]) -> tuple[Span, ...]:
    """Return the spans of tokens, given the version of each."""
    spans: list[Span] = []
    start = 0
    for version, run in groupby(versions):
        end = start + sum(1 for _ in run)
        spans.append(Span(version=version, start=start, end=end))
        start = end
    return tuple(spans)


def versions_of(spans: Sequence[Span]) -> tuple[int, ...]:
    """Return the version of each token: the inverse of `spans_of`."""
    return tuple(span.version for span in spans for _ in range(span.start, span.end))
