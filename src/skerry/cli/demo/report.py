"""`report.html` and `summary.json`: one page without scripts, plots inline as SVG."""

from __future__ import annotations

import html
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = Mapping[str, Any]
Summary = Mapping[str, Any]

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 100rem;
  margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; display: block;
  overflow-x: auto; }
th, td { padding: .25rem .75rem; text-align: right; white-space: nowrap; }
thead th { border-bottom: 2px solid; }
tbody tr + tr td { border-top: 1px solid #8884; }
figure { display: inline-block; margin: 1rem 1rem 1rem 0; background: #fff; padding: .5rem; }
figure svg { width: 34rem; max-width: 100%; height: auto; }
.verdict { font-size: 1.25rem; font-weight: 600; }
"""


def write_report(out: Path, summary: Summary) -> None:
    """Write both files into `out`."""
    (out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    (out / "report.html").write_text(_page(summary))


def _page(summary: Summary) -> str:
    rows = summary["versions"]
    patches = [row for row in rows if row["changed"] and row["sizes"]]
    settings = ", ".join(f"{name} {value}" for name, value in summary["settings"].items())
    verdict = "Every version was exact on every island." if summary["exact"] else "Not exact."
    problems = "".join(f"<li>{html.escape(problem)}</li>" for problem in summary["problems"])
    figures = "".join(
        f'<figure role="img" aria-label="{html.escape(title)}">{_plot(title, draw)}</figure>'
        for title, draw in _plots(rows, patches)
    )
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Skerry demo</title>
<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>
<h1>Skerry demo</h1>
<p>{html.escape(settings)}; {summary["wall_s"]:.0f} s in all.</p>
<p class="verdict">{verdict}</p><ul>{problems}</ul>
<h2>Versions</h2>{_versions_table(rows)}
<h2>Bytes per changed element</h2>
<p>All that a follower downloads for a version (record and pack), beside other encodings of the same
bytes, without their metadata, and beside the bound for coding positions and steps by the old
exponent.</p>
{_sizes_table(patches)}
<h2>Plots</h2>{figures}
</body></html>
"""


def _versions_table(rows: Sequence[Row]) -> str:
    head = [
        "version", "step", "kind", "changed", "of", "share", "patch + record, B", "full, B",
        "full / patch", "encode, s", "fetch + stage, s", "pause, ms", "reward", "rollouts", "exact",
    ]  # fmt: skip
    body = [
        [
            row["version"],
            row["step"],
            row["kind"],
            _number(row["changed"]),
            _number(row["elements"]),
            _number(row["changed_share"], "{:.4%}"),
            _number(row["wire_bytes"]),
            _number(row["full_bytes"]),
            _number(row["ratio_to_full"], "{:.0f}"),
            _number(row["encode_s"], "{:.2f}"),
            _number(row["transfer_and_stage_s"], "{:.2f}"),
            _number(None if row["pause_s"] is None else 1000 * row["pause_s"], "{:.1f}"),
            _number(row["reward"], "{:.3f}"),
            row["rollouts"],
            ", ".join(f"{k} {'yes' if v else 'no'}" for k, v in row["exact"].items()),
        ]
        for row in rows
    ]
    return _table(head, body)


def _sizes_table(patches: Sequence[Row]) -> str:
    if not patches:
        return "<p>No version came as a patch.</p>"
    rivals = [name for name in patches[0]["sizes"] if name not in ("bound", "changed")]
    head = ["version", "skerry", "bound", "skerry / bound", *rivals]
    body = []
    for row in patches:
        sizes, changed = row["sizes"], row["changed"]
        figures = [row["wire_bytes"] / changed, sizes["bound"] / changed]
        body.append(
            [
                row["version"],
                *(f"{figure:.3f}" for figure in figures),
                f"{figures[0] / figures[1]:.3f}",
                *(f"{sizes[name] / changed:.3f}" for name in rivals),
            ]
        )
    return _table(head, body)


def _plots(rows: Sequence[Row], patches: Sequence[Row]) -> list[tuple[str, Callable[[Axes], None]]]:
    versions = [row["version"] for row in patches]

    def share(axes: Axes) -> None:
        axes.plot(versions, [100 * row["changed_share"] for row in patches], marker="o")
        axes.set_ylabel("changed elements, %")
        axes.set_ylim(0, 1.1 * axes.get_ylim()[1])

    def sizes(axes: Axes) -> None:
        axes.plot(
            versions, [r["wire_bytes"] / r["changed"] for r in patches], marker="o", label="skerry"
        )
        for name in patches[0]["sizes"] if patches else ():
            if name != "changed":
                style = "--" if name == "bound" else "-"
                figures = [row["sizes"][name] / row["changed"] for row in patches]
                axes.plot(versions, figures, linestyle=style, label=name)
        axes.set_ylabel("bytes per changed element")
        axes.set_ylim(0, 1.1 * axes.get_ylim()[1])
        axes.legend(fontsize="small")

    def times(axes: Axes) -> None:
        for key, label in (
            ("encode_s", "encode"),
            ("transfer_and_stage_s", "fetch + stage"),
            ("pause_s", "pause"),
        ):
            axes.plot(versions, [row[key] for row in patches], marker="o", label=label)
        axes.set_ylabel("seconds")
        axes.set_yscale("log")
        axes.legend(fontsize="small")

    def rollouts(axes: Axes) -> None:
        axes.bar([row["version"] for row in rows], [row["rollouts"] for row in rows])
        axes.set_ylabel("rollouts that the version made")

    return [
        ("Share of elements that changed", share),
        ("Size of a patch", sizes),
        ("Time from step to served", times),
        ("Rollouts by version", rollouts),
    ]


def _plot(title: str, draw: Callable[[Axes], None]) -> str:
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.subplots()
    draw(axes)
    axes.set_title(title)
    axes.set_xlabel("version")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    out = io.StringIO()
    figure.savefig(out, format="svg")
    text = out.getvalue()
    return text[text.index("<svg") :]


def _table(head: Sequence[str], body: Sequence[Sequence[object]]) -> str:
    top = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    lines = "".join(
        "<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) + "</tr>"
        for row in body
    )
    return f"<table><thead><tr>{top}</tr></thead><tbody>{lines}</tbody></table>"


def _number(value: float | None, pattern: str = "{:,}") -> str:
    return "" if value is None else pattern.format(value)
