"""Commit to served over each link: ours beside files of XOR and the full checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from skerry.benchmarks.readme.markdown import table
from skerry.benchmarks.readme.rivals import Found
from skerry.benchmarks.road.ways import PATCH

_HEAD = (
    "link", "islands", "what", "MB each", "MB on the wire", "arrived, s", "of the limit",
    "served, s", "pause, ms", "CPU s: trainer, island", "island's peak, MB", "served / ours",
)  # fmt: skip


def road(found: Found) -> str:
    """Return the table; medians over the versions."""
    return table(_HEAD, list(_rows(found["ways"], found["settings"]["links"])))


def _rows(ways: Sequence[Found], links: Found) -> Iterator[list[str]]:
    keys = dict.fromkeys((w["link"], w["congestion"], w["islands"], w["what"]) for w in ways)
    served: dict[Any, float] = {}
    for key in keys:
        some = [w for w in ways if (w["link"], w["congestion"], w["islands"], w["what"]) == key]
        link, congestion, islands, what = key
        served[key] = _mid(some, "served_s")
        ours = served.get((link, congestion, islands, PATCH))
        arrived, limit = _mid(some, "arrived_s"), _mid(some, "limit_s")
        cpu = [f"{_mid(some, 'publish_cpu_s'):.2f}"] if some[0]["publish_cpu_s"] is not None else []
        name = f"**{what}**" if what == PATCH else what
        yield [
            f"{_described(links[link])}, {congestion.upper()}",
            f"{islands}",
            name,
            f"{_mid(some, 'nbytes') / 1e6:.2f}",
            f"{_mid(some, 'wire_bytes') / 1e6:.2f}",
            f"{arrived:.2f}",
            f"{arrived / limit:.1f}",
            f"{served[key]:.2f}",
            f"{1000 * _mid(some, 'pause_s'):.0f}",
            ", ".join([*cpu, f"{_mid(some, 'island_cpu_s'):.2f}"]),
            f"{_mid(some, 'island_peak_bytes') / 1e6:.0f}",
            "" if what == PATCH or not ours else f"{served[key] / ours:.1f} x",
        ]


def _mid(ways: Sequence[Found], name: str) -> float:
    return float(median(way[name] for way in ways))


def _described(link: Found) -> str:
    loss = f", {100 * link['loss']:g} % loss" if link["loss"] else ""
    return f"{link['bits_per_s'] / 1e6:,.0f} Mbit/s, {1000 * link['round_trip_s']:g} ms{loss}"
