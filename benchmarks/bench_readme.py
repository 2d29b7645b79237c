"""The README's tables from `benchmarks/results`, and a look at a result file before it is sent.

`skerry bench readme` writes them, `--check` only says whether they agree; `skerry bench check FILE`
says what a submission lacks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from skerry.benchmarks.readme.markdown import NoSuchBlock, fill
from skerry.benchmarks.readme.rivals import NoReason, rivals
from skerry.benchmarks.readme.road import road
from skerry.benchmarks.readme.scale import checks, scale
from skerry.benchmarks.readme.sizes import sizes
from skerry.benchmarks.submission import problems

# Each table, and the result file that it is made from.
TABLES: Mapping[str, tuple[str, Callable[[Mapping[str, Any]], str]]] = {
    "sizes": ("deltas", sizes),
    "rivals": ("deltas", rivals),
    "road": ("road", road),
    "scale": ("scale", scale),
    "scale-checks": ("scale", checks),
}


def tables(results: Path) -> dict[str, str]:
    """Return every table by its name, each with a line that says what it was measured by."""
    made = {}
    for name, (benchmark, make) in TABLES.items():
        document = json.loads((results / f"{benchmark}.json").read_text())
        made[name] = f"{make(document)}\n{_measured(document['form'])}\n"
    return made


def _measured(form: Mapping[str, Any]) -> str:
    about = form["machine"]
    notes = f" {form['notes']}" if form["notes"] else ""
    return (
        f"`{form['command']}`, {form['seconds'] / 60:.0f} minutes on {form['date'][:10]}: "
        f"{about['cpu']}, {about['cores']} cores, load {about['load']:.1f} before it began.{notes}"
    )


def readme(
    results: Annotated[
        Path, typer.Option(exists=True, file_okay=False, help="The directory of result files.")
    ] = Path("benchmarks/results"),
    page: Annotated[
        Path, typer.Option(exists=True, dir_okay=False, help="The page that has the tables.")
    ] = Path("README.md"),
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit 1 if it differs.")] = (
        False
    ),
) -> None:
    """Make the README's tables from the result files."""
    text = page.read_text(encoding="utf-8")
    try:
        made = fill(text, tables(results))
    except (NoSuchBlock, NoReason) as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    if made == text:
        typer.echo(f"{page} agrees with {results}")
        return
    if check:
        typer.echo(f"{page} does not agree with {results}: run `skerry bench readme`", err=True)
        raise typer.Exit(1)
    page.write_text(made, encoding="utf-8")
    typer.echo(f"{page} written")


def check(
    files: Annotated[list[Path], typer.Argument(exists=True, dir_okay=False, metavar="FILE...")],
) -> None:
    """Say what result files lack before they can be submitted (docs/benchmarks.md)."""
    found = {str(file): list(problems(file)) for file in files}
    for file, lines in found.items():
        for line in lines or ("ready to be submitted",):
            typer.echo(f"{file}: {line}")
    if any(found.values()):
        raise typer.Exit(1)
