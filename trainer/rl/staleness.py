"""How old a rollout may be, in optimizer steps, and which versions may make a fresh one.

Counted in steps, not in versions: publishes may coalesce, and a rollback makes a new version of an
old step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from skerry.inference.attribution import Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Staleness:
    """The limit.  A rollout is as old as the oldest span of its tokens."""

    max_off_policy_steps: int

    def __post_init__(self) -> None:
        if self.max_off_policy_steps < 0:
            raise ValueError(
                f"max_off_policy_steps: expected 0 or more, found {self.max_off_policy_steps}"
            )

    def lag(
        self, versions: Iterable[int], step_of: Mapping[int, int], policy_step: int
    ) -> int | None:
        """Return how many steps the oldest of `versions` is behind; None if one is unknown."""
        steps = [step_of.get(version) for version in versions]
        known = [step for step in steps if step is not None]
        return policy_step - min(known) if known and len(known) == len(steps) else None

    def admits(self, lag: int | None) -> bool:
        """Say whether a rollout of this lag is trained on.  What is of unknown age is not."""
        return lag is not None and lag <= self.max_off_policy_steps

    def accepted(self, step_of: Mapping[int, int], policy_step: int) -> str:
        """Return the range that a request states whose rollout is trained on at `policy_step`.

        All versions after the last that will be too old by then: an island that lags further
        waits for a newer one, or refuses, and never makes tokens in vain.
        """
        oldest = policy_step - self.max_off_policy_steps
        stale = [version for version, step in step_of.items() if step < oldest]
        return f"{max(stale) + 1 if stale else min(step_of)}.."


def token_lags(
    spans: Sequence[Span], step_of: Mapping[int, int], policy_step: int
) -> tuple[int, ...]:
    """Return for each token how many steps the version that made it is behind.

    Raises KeyError for a version of unknown step.
    """
    return tuple(
        policy_step - step_of[span.version] for span in spans for _ in range(span.start, span.end)
    )
