"""What commands print: one JSON object, or text for people; progress on a terminal only."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from skerry.publisher.progress import Progress

_WIDTH = 240  # digests and figures are not to be cut


def print_json(value: object) -> None:
    typer.echo(json.dumps(value))  # ASCII: a path need not be text, a terminal not UTF-8


def printable(text: str) -> str:
    """Return what a store or an island says as text that tells a terminal nothing else.

    Everything that a store holds goes through it: characters that steer, turn the writing round or
    are none are escaped.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def print_fields(fields: Iterable[tuple[str, object]]) -> None:
    """Print `name  value` lines, values aligned; None is left out."""
    shown = [(name, value) for name, value in fields if value is not None]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        typer.echo(f"{printable(name):<{width}}  {printable(str(value))}")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table; columns of figures are aligned to the right."""
    from rich.console import Console, ConsoleDimensions
    from rich.table import Table

    body = [tuple(map(printable, row)) for row in rows]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for i, column in enumerate(columns):
        figures = all(row[i][:1].isdigit() or row[i] in ("", "-") for row in body)
        table.add_column(column, justify="right" if figures else "left", no_wrap=True)
    for row in body:
        table.add_row(*row)
    # A row that is too long for the terminal is folded by it: nothing is cut.
    console = Console(markup=False)
    console.size = ConsoleDimensions(max(console.width, _WIDTH), console.height)
    console.print(table)


def size(nbytes: int | None) -> str:
    """Return a size in bytes, exact and with thousands marked."""
    return "-" if nbytes is None else f"{nbytes:,} B"


def share(changed: int | None, elements: int) -> str:
    """Return changed elements over all elements: numerator, denominator, quotient."""
    if changed is None:
        return f"- / {elements:,}"
    quotient = changed / elements if elements else 0.0
    return f"{changed:,} / {elements:,} = {quotient:.2e}"


def moment(time_ms: int) -> str:
    """Return a time in UTC, or the number itself where no calendar reaches."""
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms"


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """Show phases with bytes a second and the time left, on a terminal; quiet elsewhere."""
    from skerry.publisher.progress import silent

    if not sys.stderr.isatty():
        yield silent
        return
    from rich import progress
    from rich.console import Console

    columns = (
        progress.TextColumn("{task.description:<12}"),
        progress.BarColumn(),
        progress.DownloadColumn(),
        progress.TransferSpeedColumn(),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        tasks: dict[str, progress.TaskID] = {}

        def report(phase: str, done: int, total: int) -> None:
            if phase not in tasks:
                tasks[phase] = bar.add_task(phase, total=total)
            bar.update(tasks[phase], completed=done, total=total)

        yield report
