"""Rates from real runs of some sizes, and how far they are off at others."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from skerry.benchmarks import ours
from skerry.benchmarks.bounds import count_changed
from skerry.benchmarks.scale.rates import Linear, Rates, fitted
from skerry.benchmarks.scale.run import Seen, Size, see
from skerry.benchmarks.simulate import simulate
from skerry.codec.level import Level

Tell = Callable[[str], None]

LADDER = (0.0002, 0.001, 0.005, 0.02, 0.05)
_OFF = 0.2  # what a prediction may be off


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """One figure of one real run, and what the model says of it."""

    size: Size
    what: str
    predicted: float
    measured: float

    @property
    def off(self) -> float:
        return self.predicted / self.measured - 1 if self.measured else float("inf")

    @property
    def within(self) -> bool:
        return abs(self.off) <= _OFF


def runs(sizes: Sequence[Size], rounds: int, versions: int, tell: Tell) -> list[Seen]:
    """Run every size `rounds` times, there and back so that all see the same machine.

    The least of each is kept.
    """
    best: dict[Size, Seen] = {}
    for number in range(rounds):
        for size in sizes if number % 2 == 0 else reversed(sizes):
            tell(f"round {number + 1}: {size.megabytes:g} MB, {size.density:.2%}")
            with TemporaryDirectory(prefix="skerry-scale-") as name:
                seen = see(size, versions, Path(name))
            best[size] = _lesser(best.get(size), seen)
    return [best[size] for size in sizes]


def _lesser(before: Seen | None, seen: Seen) -> Seen:
    if before is None:
        return seen
    return replace(
        seen,
        publish_s=min(before.publish_s, seen.publish_s),
        publish_cpu_s=min(before.publish_cpu_s, seen.publish_cpu_s),
        follow_s=min(before.follow_s, seen.follow_s),
        follow_cpu_s=min(before.follow_cpu_s, seen.follow_cpu_s),
        publisher_bytes=min(before.publisher_bytes, seen.publisher_bytes),
        agent_bytes=min(before.agent_bytes, seen.agent_bytes),
    )


def sizes_by_density(megabytes: float, tell: Tell) -> list[tuple[float, float]]:
    """Encode simulated steps; return densities and bytes per changed word."""
    found = []
    for density in LADDER:
        tell(f"patches at {density:.2%}")
        pair = simulate("BF16", int(megabytes * 1e6), density, seed=2, threads=os.cpu_count() or 1)
        changed = count_changed(pair)
        data = ours.encode(pair, Level.DEFAULT, os.cpu_count() or 1, None)
        words = sum(spec.words for spec in pair.layout.tensors)
        found.append((changed / words, len(data) / changed))
    return found


def rates_of(seen: Sequence[Seen], ladder: Sequence[tuple[float, float]]) -> Rates:
    """Return the rates that fit some real runs best."""

    def fit(cost: Callable[[Seen], float], *, grows: bool = True) -> Linear:
        points = [(one.weights_bytes, one.changed, cost(one)) for one in seen]
        return fitted(points, grows=grows)

    return Rates(
        publish_s=fit(lambda one: one.publish_s),
        publish_cpu_s=fit(lambda one: one.publish_cpu_s),
        follow_s=fit(lambda one: one.follow_s),
        follow_cpu_s=fit(lambda one: one.follow_cpu_s),
        publisher_bytes=fit(lambda one: one.publisher_bytes),
        # Leaves pass through, however many: what is kept of a version is its changes.
        agent_bytes=fit(lambda one: one.agent_bytes, grows=False),
        bytes_per_changed=tuple(ladder),
        puts=_mean(one.puts for one in seen),
        gets=_mean(one.gets for one in seen),
        threads=os.cpu_count() or 1,
    )


def check(rates: Rates, seen: Sequence[Seen]) -> Iterator[Checked]:
    """Hold the model against real runs that it was not calibrated with."""
    for one in seen:
        at = one.weights_bytes, one.changed
        words = one.weights_bytes / 2
        for what, predicted, measured in (
            ("seconds to publish", rates.publish_s.at(*at), one.publish_s),
            ("seconds to follow", rates.follow_s.at(*at), one.follow_s),
            ("CPU seconds to publish", rates.publish_cpu_s.at(*at), one.publish_cpu_s),
            ("CPU seconds to follow", rates.follow_cpu_s.at(*at), one.follow_cpu_s),
            ("bytes of a patch", rates.patch_bytes(words, one.changed / words), one.patch_bytes),
            ("bytes of the publisher", rates.publisher_bytes.at(*at), one.publisher_bytes),
            ("bytes of the agent", rates.agent_bytes.at(*at), one.agent_bytes),
            ("requests to publish", rates.puts, one.puts),
            ("requests to follow", rates.gets, one.gets),
        ):
            yield Checked(size=one.size, what=what, predicted=predicted, measured=measured)


def as_rows(checked: Sequence[Checked]) -> list[dict[str, object]]:
    """Return what was checked as it is written to JSON."""
    return [{**asdict(one), "off": one.off, "within": one.within} for one in checked]


def _mean(values: Iterator[int]) -> float:
    some = list(values)
    return sum(some) / len(some)
