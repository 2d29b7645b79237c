"""The RL loop's figures for Prometheus, in a registry of their own: two runs fit into one process.

`report` says the same as JSON.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from skerry.trainer.rl.loop import StepMetrics
from skerry.trainer.rl.tally import Tally

_LAGS = (0, 1, 2, 3, 4, 6, 8, 12, 16, 32, 64)


class RLMetrics:
    """What a scrape shows; `observe` every step."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self.total = Tally()
        where = self.registry
        self._rollouts = Counter(
            "skerry_rl_rollouts", "Rollouts by what became of them", ["fate"], registry=where
        )
        self._refused = Counter("skerry_rl_refused", "Rollouts that no gate gave", registry=where)
        self._refilled = Counter(
            "skerry_rl_refilled", "Rollouts that were asked for again", registry=where
        )
        self._lag = Histogram(
            "skerry_rl_lag_steps",
            "Steps that the oldest span of a rollout was behind, of dropped ones too",
            buckets=_LAGS,
            registry=where,
        )
        self._tokens = Counter(
            "skerry_rl_tokens",
            "Trained tokens by the lag of their version",
            ["lag"],
            registry=where,
        )
        self._bounded = Counter(
            "skerry_rl_tokens_bounded",
            "Those whose importance was bounded",
            ["lag"],
            registry=where,
        )
        self._gauges = {
            name: Gauge(f"skerry_rl_{name}", text, registry=where)
            for name, text in (
                ("step", "Optimizer steps taken"),
                ("reward", "Mean reward of the last step"),
                ("dropped_share", "Rollouts dropped, of all that were made so far"),
                ("mismatch_nats", "Mean |log-probability - that when sampled|, last step"),
                ("kl_nats", "KL of behaviour and policy per token, estimated, last step"),
            )
        }

    def observe(self, metrics: StepMetrics) -> None:
        tally = metrics.tally
        self.total.add(tally)
        for fate, count in tally.fates.items():
            self._rollouts.labels(fate.value).inc(count)
        self._refused.inc(tally.refused)
        self._refilled.inc(tally.refilled)
        for lag, count in tally.lags.items():
            if lag is not None:  # a version of no known step has none
                for _ in range(count):
                    self._lag.observe(lag)
        for lag, stats in metrics.update.by_lag.items():
            self._tokens.labels(str(lag)).inc(stats.tokens)
            self._bounded.labels(str(lag)).inc(stats.bounded)
        for name, value in (
            ("step", metrics.step),
            ("reward", metrics.reward),
            ("dropped_share", self.total.dropped_share),
            ("mismatch_nats", metrics.update.mismatch),
            ("kl_nats", metrics.update.kl),
        ):
            self._gauges[name].set(value)


@contextmanager
def serving(metrics: RLMetrics, port: int) -> Iterator[int]:
    """Show the metrics on a port of the loopback interface, 0: a free one; yields it."""
    server, thread = start_http_server(port, addr="127.0.0.1", registry=metrics.registry)
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
