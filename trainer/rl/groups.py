"""Which rollouts of a batch are trained on: judged one by one, then as members of their groups.

An advantage compares a rollout with the others of its prompt, so what is left of a group matters as
much as what is left of a batch.  Pure: the same rollouts, steps and rules give the same judgement.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from skerry.trainer.rl.rollouts import Rollout
from skerry.trainer.rl.staleness import Staleness


class Fate(StrEnum):
    """What becomes of a rollout."""

    USED = "used"
    STALE = "stale"  # its oldest span is more than max_off_policy_steps behind
    UNKNOWN = "unknown"  # made by a version that this trainer has not published
    UNROUTED = "unrouted"  # came without sound routed experts, which are to be replayed
    SPREAD = "spread"  # made by versions too far from those of the rest of its group
    INCOMPLETE = "incomplete"  # sound, but too little is left of its group


class Missing(StrEnum):
    """What is done about a group that lacks members."""

    KEEP = "keep"  # trained on as it is
    DROP = "drop"  # dropped whole
    REFILL = "refill"  # the missing ones are asked for again; what then still lacks is kept


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRule:
    """What a group must be.

    Its members' spans lie within `max_spread_steps` optimizer steps (None: as far apart as
    staleness allows; 0: one version's step).  At least `min_members` are left, or as many as were
    asked for if that is less: a group of one compares with nothing.  `missing` says what is done
    when some are not there, `refills` how often they are asked for again.
    """

    max_spread_steps: int | None = None
    min_members: int = 2
    missing: Missing = Missing.KEEP
    refills: int = 1

    def __post_init__(self) -> None:
        if self.max_spread_steps is not None and self.max_spread_steps < 0:
            raise ValueError(f"max_spread_steps: 0 or more, found {self.max_spread_steps}")
        if self.min_members < 1 or self.refills < 1:
            raise ValueError(f"min_members and refills: expected 1 or more: {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A rollout, what becomes of it, and how far its oldest span is behind (None: unknown)."""

    rollout: Rollout
    fate: Fate
    lag: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """The rules of one run; `samples` is how many members a group is asked for.

    `routed` says whether a rollout brought what the trainer replays; by default nothing is.
    """

    staleness: Staleness
    rule: GroupRule
    samples: int
    routed: Callable[[Rollout], bool] = lambda _: True

    def judge(
        self, rollouts: Sequence[Rollout], step_of: Mapping[int, int], policy_step: int
    ) -> list[Judged]:
        """Judge a batch, in its order, for the update that starts at `policy_step`."""
        lags = [self.staleness.lag(r.versions, step_of, policy_step) for r in rollouts]
        fates = [self._alone(r, lag) for r, lag in zip(rollouts, lags, strict=True)]
        for group in sorted({rollout.group for rollout in rollouts}):
            sound = [
                index
                for index, rollout in enumerate(rollouts)
                if rollout.group == group and fates[index] is Fate.USED
            ]
            bounds = [_bounds(rollouts[index], step_of) for index in sound]
            kept = [sound[i] for i in _within(bounds, self.rule.max_spread_steps)]
            for index in sound:
                if index not in kept:
                    fates[index] = Fate.SPREAD
            if len(kept) < self._least():
                for index in kept:
                    fates[index] = Fate.INCOMPLETE
        return [
            Judged(rollout=rollout, fate=fate, lag=lag)
            for rollout, fate, lag in zip(rollouts, fates, lags, strict=True)
        ]

    def lacking(self, judged: Iterable[Judged], groups: int) -> dict[int, int]:
        """Return how many members each of groups 0..`groups` - 1 has to be asked for again.

        What was dropped only because too little is left of its group is there still.
        """
        if self.rule.missing is not Missing.REFILL:
            return {}
        there = dict.fromkeys(range(groups), 0)
        for one in judged:
            there[one.rollout.group] += one.fate in (Fate.USED, Fate.INCOMPLETE)
        return {g: self.samples - n for g, n in there.items() if n < self.samples}

    def _alone(self, rollout: Rollout, lag: int | None) -> Fate:
        if lag is None:
            return Fate.UNKNOWN
        if not self.staleness.admits(lag):
            return Fate.STALE
        return Fate.USED if self.routed(rollout) else Fate.UNROUTED

    def _least(self) -> int:
        if self.rule.missing is Missing.DROP:
            return self.samples
        return min(self.rule.min_members, self.samples)


def _bounds(rollout: Rollout, step_of: Mapping[int, int]) -> tuple[int, int]:
    """Return the oldest and the newest step of a rollout whose versions are all known."""
    steps = [step_of[version] for version in rollout.versions]
    return min(steps), max(steps)


def _within(bounds: Sequence[tuple[int, int]], spread: int | None) -> list[int]:
    """Return the members that lie whole in one window of `spread` steps.

    Of all windows the one that holds the most; of equal ones the newest.
    """
    if spread is None:
        return list(range(len(bounds)))
    windows = [
        (
            start,
            [i for i, (old, new) in enumerate(bounds) if start <= old and new <= start + spread],
        )
        for start in {old for old, _ in bounds}
    ]
    return max(windows, key=lambda window: (len(window[1]), window[0]), default=(0, []))[1]
