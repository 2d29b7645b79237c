"""Runs in, results out: every step is counted, and those that were asked for are measured."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from skerry.benchmarks import simulate
from skerry.benchmarks.cases import Plan, Tell, run_case
from skerry.benchmarks.deltas.groups import Breakdown
from skerry.benchmarks.deltas.results import Changed, Measured, Place
from skerry.benchmarks.deltas.states import Precision, Run, Step, steps
from skerry.benchmarks.weights import Pair

_OF_FILES = {Precision.BF16: "BF16", Precision.FP8: "F8_E4M3", Precision.STORED: "U8"}
_TIMED_S = 0.3  # speeds are taken from these cases


@dataclass(frozen=True, slots=True, kw_only=True)
class Observer:
    """How steps are measured, and who is told meanwhile."""

    plan: Plan
    breakdown: Breakdown
    tell: Tell

    def observe(self, run: Run) -> Iterator[Changed | Measured]:
        """Count every step of a run, and measure those it asks for.  Raises NotExact."""
        for step in steps(run):
            place = Place(
                source=run.source,
                subject=run.subject,
                precision=step.precision,
                step=step.step,
                lr=step.lr,
            )
            found = count(place, step.pair)
            self.tell(f"{title(place)}: {found.share:.4%} changed")
            yield found
            if step.step in run.measured:
                yield self._measured(place, step)

    def _measured(self, place: Place, step: Step) -> Measured:
        case = run_case(
            title(place), place.source, _OF_FILES[step.precision], step.pair, self.plan, self.tell
        )
        self.tell(f"{title(place)}: by kind and by layer")
        groups = list(self.breakdown.groups(step.pair))
        return Measured(place=place, case=case, codecs=self.breakdown.codecs, groups=groups)

    def ladder(
        self, shares: Sequence[float], nbytes: int, seed: int
    ) -> Iterator[Changed | Measured]:
        """Measure simulated single steps of stated densities.  Raises NotExact."""
        timed = replace(self.plan, enough_s=_TIMED_S)
        for dtype, precision in (("BF16", Precision.BF16), ("F8_E4M3", Precision.FP8)):
            for share in shares:
                place = Place(
                    source="simulated",
                    subject="normal weights, one normal update",
                    precision=precision,
                    density=share,
                )
                pair = simulate.simulate(
                    dtype, nbytes, share, seed=seed, threads=max(self.plan.threads)
                )
                yield count(place, pair)
                case = run_case(title(place), "simulated", dtype, pair, timed, self.tell)
                codecs = self.breakdown.codecs
                yield Measured(place=place, case=case, codecs=codecs, groups=[])
                del pair  # before the next is made


def title(place: Place) -> str:
    """Return what a step is called."""
    parts = [place.subject, place.precision]
    if place.density is not None:
        parts.append(f"{100 * place.density:g} %")
    if place.lr is not None:
        parts.append(f"lr {place.lr:.3g}")
    if place.step is not None:
        parts.append(f"step {place.step}")
    return ", ".join(parts)


def count(place: Place, pair: Pair) -> Changed:
    """Count what changed."""
    words: defaultdict[str, int] = defaultdict(int)
    changed: defaultdict[str, int] = defaultdict(int)
    for spec, old, new in pair.words():
        words[spec.dtype] += old.size
        changed[spec.dtype] += int(np.count_nonzero(old != new))
    return Changed(
        place=place,
        words=sum(words.values()),
        changed=sum(changed.values()),
        by_dtype={dtype: (words[dtype], changed[dtype]) for dtype in words},
    )
