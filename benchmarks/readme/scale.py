"""What large deployments take by the model, and how far the model is off at real runs."""

from __future__ import annotations

from skerry.benchmarks.readme.markdown import table
from skerry.benchmarks.readme.rivals import Found

_FORECAST = (
    "parameters", "trainer hosts", "islands", "regions", "changed", "patch, GB", "s a version",
    "RAM of a trainer host, island host, GB", "GB out a day", "$ a day", "full, $ a day",
    "GET a day", "saturates first",
)  # fmt: skip


def scale(found: Found) -> str:
    """Return the table of forecasts."""
    return table(_FORECAST, [_line(one) for one in found["forecasts"]])


def checks(found: Found) -> str:
    """Return the table of what the model says of real runs, and what they were."""
    body = [
        [
            f"{one['size']['megabytes']:g} MB, {100 * one['size']['density']:g} %",
            one["what"],
            f"{one['predicted']:,.4g}",
            f"{one['measured']:,.4g}",
            f"{one['off']:+.1%}" if one["within"] else f"**{one['off']:+.1%}**",
        ]
        for one in found["checks"]
    ]
    return table(("real run", "what", "predicted", "measured", "off by"), body)


def _line(one: Found) -> list[str]:
    it = one["deployment"]
    link = "" if it["downlink_bits"] == 10e9 else f", {it['downlink_bits'] / 1e9:g} Gbit/s each"
    return [
        f"{it['parameters'] / 1e9:,.0f} B",
        f"{it['trainer_hosts']}",
        f"{it['islands']:,}{link}",
        f"{it['regions']}{'' if it['relays'] else ', no relays'}",
        f"{100 * it['density']:g} %",
        f"{one['patch_bytes'] / 1e9:.3g}",
        f"{one['seconds']:.1f}",
        f"{one['trainer_host_bytes'] / 1e9:,.0f}, {one['island_host_bytes'] / 1e9:,.0f}",
        f"{one['egress_bytes'] / 1e9:,.0f}",
        f"{one['egress_dollars']['internet']:,.0f}",
        f"{one['full_egress_dollars']['internet']:,.0f}",
        f"{one['gets']:,.0f}",
        one["saturates"],
    ]
