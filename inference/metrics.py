"""What the server counts, in a registry of its own, so that two islands fit into one process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from skerry.inference.gate import AdmissionGate
from skerry.inference.swap import SwapReport

RequestOutcome = Literal[
    "completed", "aborted", "disconnected", "invalid", "not_ready", "gone", "unavailable", "failed"
]

_WAIT_BUCKETS_S = (0.001, 0.01, 0.1, 1.0, 5.0, 30.0, 120.0, 600.0)
_PAUSE_BUCKETS_S = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 60.0)


class GateCollector(Collector):
    """Reads the gate at every scrape: a gauge that is set elsewhere can be stale, this cannot."""

    def __init__(self, gate: AdmissionGate) -> None:
        self._gate = gate

    def collect(self) -> Iterator[GaugeMetricFamily]:
        version = GaugeMetricFamily(
            "skerry_engine_weight_version", "Version that an engine serves", labels=["engine"]
        )
        serving = GaugeMetricFamily(
            "skerry_engine_serving", "1 if an engine serves some version", labels=["engine"]
        )
        running = GaugeMetricFamily(
            "skerry_requests_running", "Requests that hold a ticket", labels=["engine"]
        )
        for name, engine in self._gate.view().items():
            if engine.version is not None:
                version.add_metric([name], engine.version)
            serving.add_metric([name], engine.version is not None)
            running.add_metric([name], engine.running)
        yield from (version, serving, running)
        yield GaugeMetricFamily(
            "skerry_requests_waiting", "Requests that wait for a version", self._gate.waiting
        )
        if self._gate.known.newest is not None:
            yield GaugeMetricFamily(
                "skerry_newest_weight_version", "Newest committed", self._gate.known.newest
            )


class Metrics:
    """The counters of one server, and its text for Prometheus.  A registry takes only one."""

    def __init__(self, gate: AdmissionGate, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self.registry.register(GateCollector(gate))
        self._requests = Counter(
            "skerry_requests",
            "Requests by how they ended",
            ["outcome"],
            registry=self.registry,
        )
        self._tokens = Counter(
            "skerry_output_tokens", "Tokens that were made", registry=self.registry
        )
        self._wait = Histogram(
            "skerry_admission_wait_seconds",
            "Wait of admitted requests",
            buckets=_WAIT_BUCKETS_S,
            registry=self.registry,
        )
        self._pause = Histogram(
            "skerry_swap_pause_seconds",
            "Time from pause to resume",
            ["engine"],
            buckets=_PAUSE_BUCKETS_S,
            registry=self.registry,
        )
        self._drain = Histogram(
            "skerry_swap_drain_seconds",
            "Time until excluded requests had ended",
            ["engine"],
            buckets=_WAIT_BUCKETS_S,
            registry=self.registry,
        )
        self._swaps = Counter(
            "skerry_swaps", "Swaps by outcome", ["engine", "outcome"], registry=self.registry
        )
        gate.on_swap(self._swapped)

    def ended(self, outcome: RequestOutcome, tokens: int = 0) -> None:
        """Count one request and the tokens that were made for it."""
        self._requests.labels(outcome).inc()
        self._tokens.inc(tokens)

    def admitted(self, waited_s: float) -> None:
        self._wait.observe(waited_s)

    def text(self) -> bytes:
        """Return the exposition format."""
        return generate_latest(self.registry)

    def _swapped(self, report: SwapReport) -> None:
        self._swaps.labels(report.engine, report.outcome).inc()
        self._drain.labels(report.engine).observe(report.drain_s)
        self._pause.labels(report.engine).observe(report.pause_s)
