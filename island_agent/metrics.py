"""An island's metrics for Prometheus, read from its status when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from skerry.island_agent.groups.ballots import Stage
from skerry.island_agent.groups.shown import GroupStatus
from skerry.island_agent.relay import Relay
from skerry.island_agent.status import PHASES, IslandStatus, ScrubStatus


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
        yield _gauge("target_version", "Version that it goes to", status.wanted)
        yield _gauge("watched", "1 while a relay tells of new records", int(status.watched))
        yield _gauge("partial", "1 when it mirrors a part of each version", status.part is not None)
        yield _gauge(
            "last_pass_timestamp_seconds", "When the last pass ended", status.last_pass_unix_s
        )
        phases = GaugeMetricFamily(
            "skerry_island_phase", "1 for what the agent does now", labels=["phase"]
        )
        for phase in PHASES:
            phases.add_metric([phase], phase == status.phase)
        yield phases
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
        nbytes = CounterMetricFamily(
            "skerry_island_install_bytes", "Bytes handled by installs", labels=["phase"]
        )
        for phase, count in list(status.install_bytes.items()):
            nbytes.add_metric([phase], count)
        yield nbytes
        yield from _scrub(status.scrub)
        yield from _groups(status.groups())
        served = GaugeMetricFamily(
            "skerry_island_engine_version", "Version that an engine serves", labels=["engine"]
        )
        healthy = GaugeMetricFamily(
            "skerry_island_engine_healthy", "0 when an engine has an error", labels=["engine"]
        )
        installed = GaugeMetricFamily(
            "skerry_island_engine_last_install_timestamp_seconds",
            "When an engine was last switched",
            labels=["engine"],
        )
        failed = CounterMetricFamily(
            "skerry_island_engine_failures", "Failures of an engine", labels=["engine"]
        )
        for name, engine in list(status.engines.items()):
            served.add_metric([name], -1 if engine.version is None else engine.version)
            healthy.add_metric([name], engine.error is None)
            failed.add_metric([name], engine.failures)
            if engine.last_install is not None:
                installed.add_metric([name], engine.last_install.at_unix_s)
        yield from (served, healthy, installed, failed)


def _groups(groups: Mapping[str, GroupStatus]) -> Iterable[Metric]:
    def gauge(name: str, text: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"skerry_group_{name}", text, labels=["group"])

    version = gauge("version", "Version that the group serves")
    serving = gauge("serving", "1 when all its engines here serve that")
    doubt = gauge("in_doubt", "1 while engines here wait for the group's decision")
    lost = gauge("lost_agents", "Agents of the group that do not answer")
    stage = GaugeMetricFamily(
        "skerry_group_stage", "1 for how far a switch is here", labels=["group", "stage"]
    )
    switches = CounterMetricFamily(
        "skerry_group_switches", "Switches that ended here", labels=["group", "outcome"]
    )
    for name, group in groups.items():
        version.add_metric([name], -1 if group.version is None else group.version)
        serving.add_metric([name], group.serving)
        doubt.add_metric([name], group.in_doubt)
        lost.add_metric([name], len(group.lost))
        for each in Stage:
            stage.add_metric([name, each.value], group.stage == each.value)
        switches.add_metric([name, "released"], group.released)
        switches.add_metric([name, "undone"], group.undone)
    yield from (version, serving, doubt, lost, stage, switches)


def _scrub(scrub: ScrubStatus) -> Iterable[Metric]:
    for name, text, value in (
        ("bytes", "Bytes of the mirror that the scrub has hashed", scrub.bytes),
        ("passes", "Times that the scrub has hashed the whole mirror", scrub.passes),
        ("damaged_parts", "Parts of the mirror found to be damaged", scrub.damaged),
        ("repaired_parts", "Parts of the mirror mended from the bulletin", scrub.repaired),
        ("failures", "Repairs that failed and are tried again", scrub.failures),
    ):
        yield CounterMetricFamily(f"skerry_agent_scrub_{name}", text, value=value)
    yield GaugeMetricFamily(
        "skerry_agent_scrub_suspects",
        "Damaged parts of the mirror that wait for their repair",
        value=len(scrub.suspects),
    )


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
