"""What is counted of rollouts and their tokens, step by step and in all.  Values, no I/O."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from skerry.trainer.rl.groups import Fate, Judged


@dataclass(slots=True, kw_only=True)
class LagStats:
    """Tokens that versions of one lag made, and how the policy differs from them by now.

    Sums over tokens: `ratio` of the importance ratios, `apart` of |log ratio|, `kl` of
    ratio - 1 - log ratio, whose mean estimates KL(behaviour || policy) (Schulman 2020, "k3"),
    `bounded` of tokens whose ratio was bounded.
    """

    tokens: int = 0
    ratio: float = 0.0
    apart: float = 0.0
    kl: float = 0.0
    bounded: int = 0

    def add(self, other: LagStats) -> None:
        self.tokens += other.tokens
        self.ratio += other.ratio
        self.apart += other.apart
        self.kl += other.kl
        self.bounded += other.bounded


def stats_by_lag(
    lags: Sequence[int], log_ratio: torch.Tensor, bounded: torch.Tensor
) -> dict[int, LagStats]:
    """Return the sums for each lag, of tokens with these lags, log ratios [n] and bounds [n]."""
    log_ratio, bounded = log_ratio.detach().double().cpu(), bounded.cpu()
    of = torch.tensor(lags)
    found = {}
    for lag in sorted(set(lags)):
        some = log_ratio[of == lag]
        ratio = some.exp()
        found[lag] = LagStats(
            tokens=some.numel(),
            ratio=ratio.sum().item(),
            apart=some.abs().sum().item(),
            kl=(ratio - 1 - some).sum().item(),
            bounded=int(bounded[of == lag].sum()),
        )
    return found


def merged(parts: Iterable[Mapping[int, LagStats]]) -> dict[int, LagStats]:
    """Return the sums of sums, by lag."""
    found: defaultdict[int, LagStats] = defaultdict(LagStats)
    for part in parts:
        for lag, stats in part.items():
            found[lag].add(stats)
    return dict(sorted(found.items()))


@dataclass(slots=True, kw_only=True)
class Tally:
    """Rollouts by what became of them, and by the lag of their oldest span (None: unknown)."""

    fates: Counter[Fate] = field(default_factory=Counter)
    lags: Counter[int | None] = field(default_factory=Counter)
    versions: Counter[int] = field(default_factory=Counter)  # each version of a rollout counts
    refused: int = 0
    refilled: int = 0  # asked for again; counted in the others as well

    @classmethod
    def of(cls, judged: Iterable[Judged], *, refused: int, refilled: int) -> Tally:
        tally = cls(refused=refused, refilled=refilled)
        for one in judged:
            tally.fates[one.fate] += 1
            tally.lags[one.lag] += 1
            tally.versions.update(one.rollout.versions)
        return tally

    def add(self, other: Tally) -> None:
        self.fates.update(other.fates)
        self.lags.update(other.lags)
        self.versions.update(other.versions)
        self.refused += other.refused
        self.refilled += other.refilled

    @property
    def used(self) -> int:
        return self.fates[Fate.USED]

    @property
    def dropped(self) -> int:
        return self.fates.total() - self.used

    @property
    def dropped_share(self) -> float:
        """Rollouts that were made in vain, of all that were made."""
        made = self.fates.total()
        return self.dropped / made if made else 0.0

    @property
    def dropped_by(self) -> dict[str, int]:
        """How many were dropped, by the reason."""
        return {fate.value: self.fates[fate] for fate in Fate if fate is not Fate.USED}
