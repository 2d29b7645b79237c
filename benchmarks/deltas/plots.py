"""The plots: how much changes, and what it costs to send."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from skerry.benchmarks.deltas.results import Changed, Deltas, Measured
from skerry.benchmarks.page import Draw
from skerry.codec.level import Level

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_OURS = f"Skerry, {Level.DEFAULT}"
_DTYPE = {"BF16": "BF16", "FP8": "F8_E4M3"}
_FIELD = (0.15, 0.05)  # percent of FP8 words: what others report, early and settled
_HIGHEST = 8.0  # bytes per changed word that plots show


def plots(found: Deltas) -> Iterator[tuple[str, str, Draw]]:
    """Yield a file's name, a title and how to draw it, for each plot there is data for."""
    if found.curve:
        yield "curve", "Changed share from warm-up to the settled run", _curve(found.curve)
    if any(changed.place.lr for changed in found.changes):
        yield "by-lr", "Changed share by learning rate", _by_lr(found.changes)
    for precision in _DTYPE:
        here = [one for one in found.measured if one.place.precision == precision]
        ladder = [one for one in here if one.place.density is not None]
        live = [one for one in here if one.place.lr is not None and one.groups]
        if ladder:
            name = f"sizes-by-density-{precision.lower()}"
            yield name, f"Bytes per changed word, simulated {precision}", _sizes(ladder, _density)
        if live:
            name = f"sizes-by-lr-{precision.lower()}"
            yield name, f"Bytes per changed word, {precision} by learning rate", _sizes(live, _lr)
            middle = live[len(live) // 2]
            name = f"places-{precision.lower()}"
            at = f"{precision}, lr {middle.place.lr:.3g}"
            yield name, f"Changed share by layer, {at}", _layers(middle)
            yield f"kinds-{precision.lower()}", f"Changed share by kind, {at}", _kinds(middle)


def _curve(changes: Sequence[Changed]) -> Draw:
    def draw(axes: Axes) -> None:
        for precision, dtype in _DTYPE.items():
            some = [c for c in changes if c.place.precision == precision]
            axes.plot(
                _steps(some), [100 * c.share_of(dtype) for c in some], marker=".", label=precision
            )
        early, settled = _FIELD
        axes.axhspan(settled, early, color="C1", alpha=0.12, label="FP8 as others report")
        axes.set_yscale("log")
        axes.locator_params(axis="x", integer=True)
        axes.set_xlabel("step")
        axes.set_ylabel("changed words of that dtype, %")
        rate = axes.twinx()
        one = [c for c in changes if c.place.precision == "BF16"]
        rate.plot(_steps(one), [c.place.lr or 0.0 for c in one], "k:", label="lr")
        rate.set_yscale("log")
        rate.set_ylabel("learning rate (dotted)")
        axes.legend(fontsize="small")

    return draw


def _steps(changes: Sequence[Changed]) -> list[int]:
    return [changed.place.step or 0 for changed in changes]


def _by_lr(changes: Sequence[Changed]) -> Draw:
    def draw(axes: Axes) -> None:
        lines: dict[tuple[str, str], dict[float, Changed]] = {}
        for changed in changes:
            place = changed.place
            if place.lr is not None:
                key = (place.subject, place.precision)
                lines.setdefault(key, {})[place.lr] = changed  # the last step of each rate
        for (subject, precision), points in lines.items():
            dtype = _DTYPE.get(precision)
            shares = [100 * (c.share_of(dtype) if dtype else c.share) for c in points.values()]
            axes.plot(list(points), shares, marker="o", label=f"{subject}, {precision}")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("learning rate")
        axes.set_ylabel("changed words of that dtype, %")
        axes.legend(fontsize="x-small")

    return draw


def _density(one: Measured) -> float:
    return 100 * one.case.changed / max(one.case.words, 1)


def _lr(one: Measured) -> float:
    assert one.place.lr is not None
    return one.place.lr


def _sizes(measured: Sequence[Measured], by: Callable[[Measured], float]) -> Draw:
    def draw(axes: Axes) -> None:
        at = [by(one) for one in measured]
        axes.plot(at, [one.case.bound for one in measured], "k--", label="bound")
        axes.plot(at, [one.case.free_bound for one in measured], "k:", label="without context")
        for name in dict.fromkeys(row.codec for one in measured for row in one.case.rows):
            rows = [{row.codec: row for row in one.case.rows}[name] for one in measured]
            if any(row.missing for row in rows) or (name != _OURS and name.startswith("Skerry")):
                continue
            sizes = [row.bytes_per_changed for row in rows]
            width = 3 if name == _OURS else 1
            axes.plot(at, sizes, marker=".", linewidth=width, label=name)
        axes.set_xscale("log")
        axes.set_ylim(0, _HIGHEST)
        axes.set_xlabel("changed, %" if by is _density else "learning rate")
        axes.set_ylabel("bytes per changed word")
        axes.legend(fontsize="xx-small", ncols=2)

    return draw


def _shares(one: Measured, by: str) -> tuple[list[str], list[float]]:
    groups = [group for group in one.groups if group.by == by]
    shares = [100 * group.changed / max(group.words, 1) for group in groups]
    return [group.name for group in groups], shares


def _layers(one: Measured) -> Draw:
    def draw(axes: Axes) -> None:
        names, shares = _shares(one, "layer")
        axes.bar(np.arange(len(names)), shares)
        axes.set_xticks(np.arange(len(names)), names, rotation=90, fontsize="x-small")
        axes.set_ylabel("changed words, %")

    return draw


def _kinds(one: Measured) -> Draw:
    def draw(axes: Axes) -> None:
        names, shares = _shares(one, "projection")
        axes.barh(np.arange(len(names)), shares)
        axes.set_yticks(np.arange(len(names)), names, fontsize="x-small")
        axes.set_xlabel("changed words, %")

    return draw
