"""The RL loop's figures as JSON: of one step, or of all together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from skerry.trainer.rl.loop import StepMetrics
from skerry.trainer.rl.tally import Tally


def to_json(metrics: StepMetrics) -> dict[str, object]:
    """Return one step's figures; the keys of `lags` are steps, null for a version of none."""
    update = metrics.update
    return {
        "step": metrics.step,
        "version": metrics.version,
        "reward": metrics.reward,
        "seconds": dict(metrics.seconds),
        **tally_json(metrics.tally),
        "update": {
            "loss": update.loss,
            "grad_norm": update.grad_norm,
            "bounded": update.bounded,
            "mismatch": update.mismatch,
            "kl": update.kl,
            "by_lag": {str(lag): asdict(stats) for lag, stats in update.by_lag.items()},
        },
    }


def tally_json(tally: Tally) -> dict[str, object]:
    """Return what became of the rollouts of one step, or of all."""
    return {
        "used": tally.used,
        "dropped": tally.dropped,
        "dropped_share": tally.dropped_share,
        "dropped_by": tally.dropped_by,
        "refused": tally.refused,
        "refilled": tally.refilled,
        "lags": _counts(tally.lags),
        "versions": _counts(tally.versions),
    }


def _counts(counts: Mapping[int | None, int] | Mapping[int, int]) -> dict[str, int]:
    """Sort by number, what has none last."""
    ordered = sorted(counts.items(), key=lambda item: (item[0] is None, item[0] or 0))
    return {"null" if key is None else str(key): count for key, count in ordered}
