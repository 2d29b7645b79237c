"""What the demo says at the end: the verdict on every version, and its sizes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from skerry.cli.output import progress_bar

if TYPE_CHECKING:
    from skerry.cli.demo.children import Island
    from skerry.cli.demo.watch import Seen


def judge(bulletin: str, seen: Seen, islands: list[Island], key: str) -> dict[str, Any]:
    """Rebuild the run and return the summary."""
    from skerry.bulletin import BulletinReader, PublicKey, open_store
    from skerry.cli.demo.audit import audit

    reader = BulletinReader(open_store(bulletin), pinned_key=PublicKey.parse(key))
    with progress_bar() as progress:
        verdict = audit(
            reader,
            seen.installs,
            {island.name: island.directory / "mirror" for island in islands},
            progress,
        )
    rows = []
    for row in seen.rows():
        sizes = dict(verdict.sizes.get(row["version"], {}))
        rows.append({**row, "sizes": sizes})
        for island, exact in row["exact"].items():
            if exact is False:
                verdict.problems.append(f"{island} held version {row['version']} with other bytes")
            elif exact is None:
                verdict.problems.append(f"{island} never held version {row['version']}")
    for island, failures in seen.failures.items():
        verdict.problems.append(f"{island} had failures: {failures}")
    return {
        "exact": not verdict.problems,
        "problems": verdict.problems,
        "versions": rows,
        "python": sys.version.split()[0],
    }


def say(out: Path, summary: dict[str, Any]) -> None:
    from skerry.cli.output import print_table

    body = []
    for row in summary["versions"]:
        sizes, changed = row["sizes"], row["changed"]
        if not changed or not sizes:
            continue
        per = [row["wire_bytes"] / changed, sizes["bound"] / changed]
        per += [sizes[name] / changed for name in sizes if name not in ("bound", "changed")]
        figures = [f"{figure:.3f}" for figure in per]
        body.append([str(row["version"]), f"{row['changed_share']:.3%}", *figures])
        names = [name for name in sizes if name not in ("bound", "changed")]
    if body:
        typer.echo("bytes per changed element, all that a follower downloads:")
        print_table(["version", "changed", "skerry", "bound", *names], body)
    for problem in summary["problems"]:
        typer.echo(f"PROBLEM: {problem}")
    verdict = "every version exact on every island" if summary["exact"] else "NOT exact"
    typer.echo(f"{verdict}; {summary['wall_s']:.0f} s; see {out / 'report.html'}")
