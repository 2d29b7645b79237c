"""`report.html` and `summary.json`: one page without scripts, plots inline as SVG."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skerry.benchmarks.page import Draw, figure_of, framed, page, svg, table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = Mapping[str, Any]
Summary = Mapping[str, Any]


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
    figures = "".join(framed(title, _plot(title, draw)) for title, draw in _plots(rows, patches))
    return page(
        "Skerry demo",
        f"""<p>{html.escape(settings)}; {summary["wall_s"]:.0f} s in all.</p>
<p class="verdict">{verdict}</p><ul>{problems}</ul>
<h2>Versions</h2>{_versions_table(rows)}
<h2>Bytes per changed element</h2>
<p>All that a follower downloads for a version (record and pack), beside other encodings of the same
bytes, without their metadata, and beside the bound for coding positions and steps by the old
exponent.</p>
{_sizes_table(patches)}
<h2>Plots</h2>{figures}""",
    )


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
    return table(head, body)


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
    return table(head, body)


def _plots(rows: Sequence[Row], patches: Sequence[Row]) -> list[tuple[str, Draw]]:
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


def _plot(title: str, draw: Draw) -> str:
    def by_version(axes: Axes) -> None:
        from matplotlib.ticker import MaxNLocator

        draw(axes)
        axes.set_xlabel("version")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))

    return svg(figure_of(title, by_version))


def _number(value: float | None, pattern: str = "{:,}") -> str:
    return "" if value is None else pattern.format(value)
