"""The links that versions are sent over, by name or in numbers."""

from __future__ import annotations

from collections.abc import Mapping

from skerry.benchmarks.road.link import LinkSpec

LINKS: Mapping[str, LinkSpec] = {
    "lan": LinkSpec(bits_per_s=10_000_000_000, round_trip_s=0.0004, loss=0.0),
    "1g": LinkSpec(bits_per_s=1_000_000_000, round_trip_s=0.08, loss=0.0),
    "200m": LinkSpec(bits_per_s=200_000_000, round_trip_s=0.15, loss=0.01),
}


def parse(text: str) -> tuple[str, LinkSpec]:
    """Return a link's name and what it is: lan, 1g, 200m, or MBIT:MS:LOSS, the loss in percent.

    Raises ValueError.
    """
    if text in LINKS:
        return text, LINKS[text]
    try:
        mbit, ms, loss = (float(part) for part in text.split(":"))
    except ValueError:
        known = ", ".join(LINKS)
        raise ValueError(f"expected {known} or MBIT:MS:LOSS, found {text}") from None
    if not (mbit > 0 and ms >= 0 and 0 <= loss < 100):
        raise ValueError(f"no link has such numbers: {text}")
    spec = LinkSpec(bits_per_s=round(mbit * 1e6), round_trip_s=ms / 1000, loss=loss / 100)
    return text, spec
