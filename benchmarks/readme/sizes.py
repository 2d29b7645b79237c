"""Bytes per changed word of every measured step, beside the bounds and the best rival."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from skerry.benchmarks.readme.markdown import table
from skerry.benchmarks.readme.rivals import Found
from skerry.codec.level import Level

_OURS = f"Skerry, {Level.DEFAULT}"


def sizes(found: Found) -> str:
    """Return the table."""
    head = [
        "step",
        "changed",
        "**skerry**",
        "of the bound",
        "best rival",
        "",
        "skerry / best rival",
    ]
    return table(head, list(_rows(found)))


def _rows(found: Found) -> Iterator[list[str]]:
    for measured in found["measured"]:
        case: Any = measured["case"]
        cost = {
            row["codec"]: row["encoded_bytes"] / max(row["changed"], 1)
            for row in case["rows"]
            if not row["missing"]
        }
        others = {name: size for name, size in cost.items() if not name.startswith("Skerry")}
        best = min(others, key=lambda name: others[name])
        ours = cost[_OURS]
        yield [
            _title(measured["place"]),
            f"{100 * case['changed'] / max(case['words'], 1):.3f} %",
            f"**{ours:.3f}**",
            f"{ours / case['bound']:.3f}" if case["bound"] else "",
            best,
            f"{others[best]:.3f}",
            f"{ours / others[best]:.2f}",
        ]


def _title(place: Any) -> str:
    if place["density"] is not None:
        return f"simulated {place['precision']}"
    rate = "" if place["lr"] is None else f", lr {place['lr']:.0e}".replace("e-0", "e-")
    return f"{place['subject']}{rate}, step {place['step']}, {place['precision']}"
