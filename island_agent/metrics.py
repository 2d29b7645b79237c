"""An island's metrics for Prometheus, read from its status when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from skerry.island_agent.relay import Relay
from skerry.island_agent.status import IslandStatus


class IslandCollector(Collector):
    """Turns a status into metrics.  Versions that do not exist are -1."""

    def __init__(self, status: Callable[[], IslandStatus]) -> None:
        self._status = status

    def register(self, registry: CollectorRegistry) -> None:
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """Yield every metric family."""
        status = self._status()
        yield _gauge("version", "Version that the mirror holds", status.version)
        yield _gauge("newest_version", "Newest version in the log", status.newest)
        yield _gauge("newest_step", "Optimizer step of the newest version", status.newest_step)
        yield _gauge("lag_versions", "Versions between the mirror and the newest", status.lag)
        yield _gauge("ready", "1 when the island serves", int(status.ready))
        yield _gauge(
            "job_bytes", "Bytes of the current download on disk", status.progress.job_bytes
        )
        yield _gauge("job_size_bytes", "Size of the current download", status.bytes_total)
        yield _counter("fetched_bytes", "Bytes read from the store", status.progress.bytes_read)
        yield _counter("fetch_retries", "Ranges read again", status.progress.retries)
        yield _counter("installs", "Finished installs", status.installs)
        failures = CounterMetricFamily(
            "skerry_island_failures", "Failures by kind of error", labels=["kind"]
        )
        for kind, count in list(status.failures.items()):
            failures.add_metric([kind], count)
        yield failures
        seconds = CounterMetricFamily(
            "skerry_island_install_seconds", "Seconds spent on installs", labels=["phase"]
        )
        for phase, spent in list(status.install_seconds.items()):
            seconds.add_metric([phase], spent)
        yield seconds
        served = GaugeMetricFamily(
            "skerry_island_engine_version", "Version that an engine serves", labels=["engine"]
        )
        for name, engine in list(status.engines.items()):
            served.add_metric([name], -1 if engine.version is None else engine.version)
        yield served


class RelayCollector(Collector):
    """Turns what a relay has done into metrics."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay

    def register(self, registry: CollectorRegistry) -> None:
        registry.register(self)

    def collect(self) -> Iterable[Metric]:
        """Yield every metric family."""
        figures = self._relay.to_json()
        for name, text in _RELAY_COUNTERS:
            yield CounterMetricFamily(f"skerry_relay_{name}", text, value=figures[name])
        for name, text in _RELAY_GAUGES:
            yield GaugeMetricFamily(f"skerry_relay_{name}", text, value=figures[name])


_RELAY_COUNTERS = (
    ("upstream_bytes", "Bytes read from upstream: the WAN, or another relay"),
    ("upstream_requests", "Requests made upstream"),
    ("served_bytes", "Bytes given to neighbours"),
    ("hits", "Objects that were here when a neighbour asked"),
    ("misses", "Objects that were not"),
    ("coalesced", "Requests that waited for what another one was fetching"),
    ("refused", "Objects that a neighbour was sent past the relay for, or told to ask again"),
)
_RELAY_GAUGES = (
    ("waiting", "Neighbours that wait for the next record"),
    ("cache_bytes", "Bytes kept or promised on disk"),
)


def _gauge(name: str, text: str, value: float | None) -> Metric:
    return GaugeMetricFamily(f"skerry_island_{name}", text, value=-1 if value is None else value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"skerry_island_{name}", text, value=value)
