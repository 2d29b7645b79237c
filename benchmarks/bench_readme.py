"""The tables of README and docs from `benchmarks/results`, and a look at a file before it is sent.

`skerry bench readme` writes them, `--check` only says whether they agree; `skerry bench check FILE`
says what a submission lacks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from skerry.benchmarks.readme.markdown import NoSuchBlock, fill
from skerry.benchmarks.readme.rivals import NoReason, rivals
from skerry.benchmarks.readme.road import road
from skerry.benchmarks.readme.scale import checks, scale
from skerry.benchmarks.readme.sizes import sizes
from skerry.benchmarks.submission import problems

RESULTS = Path("benchmarks/results")

# Each table, and the result file that it is made from.
TABLES: Mapping[str, tuple[str, Callable[[Mapping[str, Any]], str]]] = {
    "sizes": ("deltas", sizes),
    "rivals": ("deltas", rivals),
    "road": ("road", road),
    "scale": ("scale", scale),
    "scale-checks": ("scale", checks),
}

# Where they go: every table has one page.
PAGES: Mapping[str, Sequence[str]] = {
    "README.md": ("sizes", "rivals"),
    "docs/benchmarks.md": ("road",),
    "docs/scale.md": ("scale", "scale-checks"),
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


def filled(page: str, text: str, made: Mapping[str, str]) -> str:
    """Return a page's text with its tables.  Raises NoSuchBlock."""
    return fill(text, {name: made[name] for name in PAGES[page]})


def readme(
    root: Annotated[
        Path, typer.Option(exists=True, file_okay=False, help="The checkout that has the pages.")
    ] = Path(),
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit 1 if it differs.")] = (
        False
    ),
) -> None:
    """Make the tables of README and docs from the result files."""
    stale = False
    for page in PAGES:
        path = root / page
        text = path.read_text(encoding="utf-8")
        try:
            made = filled(page, text, tables(root / RESULTS))
        except (NoSuchBlock, NoReason) as error:
            typer.echo(f"error: {page}: {error}", err=True)
            raise typer.Exit(1) from None
        if made == text:
            typer.echo(f"{page} agrees with {RESULTS}")
        elif check:
            typer.echo(f"{page} does not agree with {RESULTS}: run `skerry bench readme`", err=True)
            stale = True
        else:
            path.write_text(made, encoding="utf-8")
            typer.echo(f"{page} written")
    if stale:
        raise typer.Exit(1)


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
