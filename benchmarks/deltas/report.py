"""`deltas.csv`, the plots and `report.html`."""

from __future__ import annotations

import csv
import html
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from skerry.benchmarks.deltas.observe import title
from skerry.benchmarks.deltas.plots import plots
from skerry.benchmarks.deltas.results import Changed, Deltas, Measured, Place
from skerry.benchmarks.page import figure_of, framed, page, svg, table

COLUMNS = (
    "source", "subject", "precision", "lr", "step", "density", "scope", "name", "words", "changed",
    "share", "codec", "bytes_per_changed",
)  # fmt: skip
_BOUNDS = ("bound", "bound without context")

_EXPLAINED = """<p>A bound is what positions and steps cost if they are coded by the old exponents
alone (or without any context); codecs are measured on the same bytes, every result proven exact.
Slow ones are measured on a slice of each tensor.  FP8: linear layers in blocks of 128 by 128, cast
from the BF16 weights; all else stays BF16.</p>"""


def write_report(out: Path, found: Deltas, form: Mapping[str, Any]) -> None:
    """Write everything into `out`.  Raises PlotsUnavailable."""
    out.mkdir(parents=True, exist_ok=True)
    with (out / "deltas.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        writer.writerows(rows(found))
    figures = []
    for name, about, draw in plots(found):
        figure = figure_of(about, draw)
        figure.savefig(out / f"{name}.png", dpi=150)
        element = svg(figure)
        (out / f"{name}.svg").write_text(element)
        figures.append(framed(about, element))
    (out / "report.html").write_text(_page(found, form, "".join(figures)))


def rows(found: Deltas) -> Iterator[list[object]]:
    """Yield a line for every codec and bound of every group, and one for every step counted."""
    for changed in (*found.curve, *found.changes):
        place = _cells(changed.place)
        yield [*place, "all", "", changed.words, changed.changed, changed.share, "", ""]
        for dtype, (words, some) in changed.by_dtype.items():
            yield [*place, "dtype", dtype, words, some, some / max(words, 1), "", ""]
    for one in found.measured:
        place, case = _cells(one.place), one.case
        share = case.changed / max(case.words, 1)
        whole = [*place, "all", "", case.words, case.changed, share]
        for name, size in zip(_BOUNDS, (case.bound, case.free_bound), strict=True):
            yield [*whole, name, size]
        for row in case.rows:
            if not row.missing:
                yield [*whole, row.codec, row.bytes_per_changed]
        for group in one.groups:
            share = group.changed / max(group.words, 1)
            part = [*place, group.by, group.name, group.words, group.changed, share]
            names = (*_BOUNDS, *one.codecs)
            for name, cost in zip(
                names, (group.bound, group.free_bound, *group.sizes), strict=True
            ):
                if cost is not None:
                    yield [*part, name, cost]


def _cells(place: Place) -> list[object]:
    return ["" if cell is None else cell for cell in asdict(place).values()][:3] + [
        "" if cell is None else cell for cell in (place.lr, place.step, place.density)
    ]


def _page(found: Deltas, form: Mapping[str, Any], figures: str) -> str:
    about = form["machine"]
    return page(
        "What steps change",
        f"""<p>{html.escape(str(form["command"]))}; Skerry {form["skerry"]}, commit
{form["commit"]}; {html.escape(str(about["cpu"]))}, {about["cores"]} cores, load {about["load"]:.1f}
at the beginning; {form["seconds"]:.0f} s in all.</p>
<h2>Plots</h2>{figures}
<h2>Bytes per changed word</h2>{_EXPLAINED}{_sizes(found)}
<h2>By kind of tensor</h2>{"".join(map(_groups, found.measured))}
<h2>Every step</h2>{_changes(found)}""",
    )


def _sizes(found: Deltas) -> str:
    codecs = list(dict.fromkeys(r.codec for one in found.measured for r in one.case.rows))
    body = []
    for one in found.measured:
        case = one.case
        sizes = {row.codec: row.bytes_per_changed for row in case.rows if not row.missing}
        body.append(
            [
                title(one.place),
                f"{case.changed / max(case.words, 1):.4%}",
                f"{case.bound:.3f}",
                f"{case.free_bound:.3f}",
                *(f"{sizes[name]:.3f}" if name in sizes else "-" for name in codecs),
            ]
        )
    return table(["step", "changed", *_BOUNDS, *codecs], body)


def _groups(one: Measured) -> str:
    if not one.groups:
        return ""
    body = [
        [
            f"{group.by} {group.name}",
            f"{group.changed / max(group.words, 1):.4%}",
            f"{group.bound:.3f}",
            f"{group.free_bound:.3f}",
            *("-" if size is None else f"{size:.3f}" for size in group.sizes),
        ]
        for group in one.groups
    ]
    head = ["tensors", "changed", *_BOUNDS, *one.codecs]
    return f"<h3>{html.escape(title(one.place))}</h3>{table(head, body)}"


def _changes(found: Deltas) -> str:
    def line(changed: Changed) -> list[str]:
        parts = (f"{dtype} {changed.share_of(dtype):.4%}" for dtype in changed.by_dtype)
        return [title(changed.place), f"{changed.share:.4%}", ", ".join(parts)]

    every = (*found.curve, *found.changes)
    return table(["step", "changed", "by dtype"], [line(changed) for changed in every])
