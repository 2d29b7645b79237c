"""A page without scripts: tables, and plots inline as SVG."""

from __future__ import annotations

import html
import io
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Draw = Callable[["Axes"], None]

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


class PlotsUnavailable(ImportError):
    """Plots need matplotlib; the operator installs the extra."""

    def __init__(self) -> None:
        super().__init__("plots need matplotlib: pip install 'skerry[plots]'", name="matplotlib")


def page(title: str, body: str) -> str:
    """Return a whole document; `body` is markup."""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>
<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>
<h1>{html.escape(title)}</h1>
{body}
</body></html>
"""


def table(head: Sequence[str], body: Sequence[Sequence[object]]) -> str:
    """Return a table; cells are text."""
    top = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    lines = "".join(
        "<tr>" + "".join(f"<td>{html.escape(str(cell))}</td>" for cell in row) + "</tr>"
        for row in body
    )
    return f"<table><thead><tr>{top}</tr></thead><tbody>{lines}</tbody></table>"


def figure_of(title: str, draw: Draw) -> Figure:
    """Return a plot.  Raises PlotsUnavailable."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PlotsUnavailable from error
    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.subplots()
    draw(axes)
    axes.set_title(title)
    return figure


def svg(figure: Figure) -> str:
    """Return a plot as an element."""
    out = io.StringIO()
    figure.savefig(out, format="svg")
    text = out.getvalue()
    return text[text.index("<svg") :]


def framed(title: str, element: str) -> str:
    """Return a plot's element with what a reader who cannot see it is told."""
    return f'<figure role="img" aria-label="{html.escape(title)}">{element}</figure>'
