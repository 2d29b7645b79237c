"""The formulas of docs/scale.md.  Pure: a deployment and rates in, figures out.

Law: a figure grows with nothing but what its formula on that page names.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from skerry.benchmarks.scale.rates import EVERY_PRICE, Prices, Rates

_DAY_S = 86_400.0
S3_GETS_PER_S = 5_500.0  # of one prefix
_LOG_RTTS = 4.0  # a look at the log, the record's way, the request for the pack, its first byte
XOR_BYTES_PER_CHANGED = 3.4  # dense XOR + zstd-1 at 0.5 %: `skerry bench deltas` has others


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """What is run where.  Links are what one host, or one island, gets of them."""

    parameters: float
    word_bytes: int = 2
    density: float = 0.005
    step_s: float = 60.0
    trainer_hosts: int = 1
    islands: int = 1
    regions: int = 1
    host_weights_bytes: float = 512e9  # that one engine host serves
    host_speedup: float = 8.0  # of one host over the machine that was measured
    uplink_bits: float = 25e9  # of a trainer host
    downlink_bits: float = 10e9  # of an island
    round_trip_s: float = 0.08
    poll_s: float = 0.5
    relays: bool = True  # one in each region, from which its islands fetch

    @property
    def weights_bytes(self) -> float:
        return self.parameters * self.word_bytes

    @property
    def hosts_per_island(self) -> int:
        return math.ceil(self.weights_bytes / self.host_weights_bytes)

    @property
    def wan_readers(self) -> int:
        """How many fetch a version from the store."""
        return min(self.regions, self.islands) if self.relays else self.islands


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What a deployment takes.  Seconds of one version; dollars and requests of a day."""

    patch_bytes: float
    publish_s: float
    upload_s: float
    notice_s: float
    wan_s: float
    fetch_s: float
    follow_s: float
    trainer_host_bytes: float
    island_host_bytes: float
    egress_bytes: float
    egress_dollars: Mapping[str, float]
    full_egress_dollars: Mapping[str, float]
    xor_egress_dollars: Mapping[str, float]
    puts: float
    gets: float
    request_dollars: Mapping[str, float]
    busy: Mapping[str, float]  # share of a step's time by what is used

    @property
    def seconds(self) -> float:
        """From a step's end until every island has installed it."""
        return self.publish_s + self.upload_s + self.notice_s + self.fetch_s + self.follow_s

    @property
    def saturates(self) -> str:
        """What is used most: the first to be too little when steps get shorter."""
        return max(self.busy, key=lambda name: self.busy[name])

    @property
    def shortest_step_s(self) -> float:
        """How long a step must take at least, so that versions do not queue up anywhere."""
        return max(self.publish_s, self.upload_s, self.wan_s, self.follow_s)


def forecast(it: Deployment, rates: Rates) -> Forecast:
    """Return what a deployment takes."""
    words = it.parameters
    patch = rates.patch_bytes(words, it.density)
    share = it.weights_bytes / it.trainer_hosts, words * it.density / it.trainer_hosts
    island = it.weights_bytes / it.hosts_per_island, words * it.density / it.hosts_per_island
    publish_s = rates.publish_s.at(*share, it.host_speedup)
    follow_s = rates.follow_s.at(*island, it.host_speedup)
    upload_s = 8 * patch / it.trainer_hosts / it.uplink_bits + 2 * it.round_trip_s
    wan_s = 8 * patch / it.downlink_bits
    # Behind a relay a version crosses two links, one after the other.
    fetch_s = wan_s * (2 if it.relays else 1)
    versions = _DAY_S / it.step_s
    egress = patch * it.wan_readers * versions
    puts = (rates.puts + it.trainer_hosts - 1) * versions
    looks = _DAY_S / it.poll_s
    gets = it.wan_readers * (rates.gets * versions + looks)
    return Forecast(
        patch_bytes=patch,
        publish_s=publish_s,
        upload_s=upload_s,
        notice_s=it.poll_s / 2 + _LOG_RTTS * it.round_trip_s,
        wan_s=wan_s,
        fetch_s=fetch_s,
        follow_s=follow_s,
        trainer_host_bytes=rates.publisher_bytes.at(*share),
        island_host_bytes=rates.agent_bytes.at(*island),
        egress_bytes=egress,
        egress_dollars=_dollars(egress),
        full_egress_dollars=_dollars(it.weights_bytes * it.islands * versions),
        xor_egress_dollars=_dollars(
            XOR_BYTES_PER_CHANGED * words * it.density * it.islands * versions
        ),
        puts=puts,
        gets=gets,
        request_dollars={
            name: (puts * price.put + gets * price.get) / 1e6 for name, price in EVERY_PRICE.items()
        },
        busy={
            "trainer hosts' cores": publish_s / it.step_s,
            "trainer hosts' uplinks": upload_s / it.step_s,
            "islands' links": wan_s / it.step_s,
            "island hosts' cores": follow_s / it.step_s,
            "requests to one prefix": gets / _DAY_S / S3_GETS_PER_S,
        },
    )


def _dollars(egress_bytes: float) -> dict[str, float]:
    def of(price: Prices) -> float:
        return price.egress_a_day(egress_bytes / 1e9)

    return {name: of(price) for name, price in EVERY_PRICE.items()}
