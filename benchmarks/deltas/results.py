"""What `skerry bench deltas` finds: what every step changed, and what some cost to send."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from skerry.benchmarks.results import Case


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Which step of which run, in which precision; `density` is what was asked for, if it was."""

    source: str
    subject: str
    precision: str
    step: int | None = None
    lr: float | None = None
    density: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """How many words a step changed, of how many; by dtype, too."""

    place: Place
    words: int
    changed: int
    by_dtype: Mapping[str, tuple[int, int]]  # words, changed

    @property
    def share(self) -> float:
        return self.changed / max(self.words, 1)

    def share_of(self, dtype: str) -> float:
        """Return the changed share of the words of one dtype, 0 where there are none."""
        words, changed = self.by_dtype.get(dtype, (0, 0))
        return changed / max(words, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The tensors of one kind or of one layer: what changed, and bytes per changed word.

    `sizes` are those of the codecs in `Measured.codecs`; None where nothing changed or a codec is
    not there.  The bounds count this group alone.
    """

    by: str  # "projection" | "layer"
    name: str
    words: int
    changed: int
    bound: float
    free_bound: float
    sizes: Sequence[float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One step sent by every codec: the whole of it, and by kind and by layer."""

    place: Place
    case: Case
    codecs: Sequence[str]
    groups: Sequence[Group]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deltas:
    """One run of the benchmark."""

    curve: Sequence[Changed]  # warm-up to settled
    changes: Sequence[Changed]  # every other step
    measured: Sequence[Measured]
