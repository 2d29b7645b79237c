"""`skerry top`: versions and islands of a run, live in a terminal."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Annotated

import typer

from skerry.cli.options import BulletinArgument, JsonOption, KeyOption, parse_key
from skerry.cli.output import moment, print_json, printable, size

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.table import Table
    from rich.text import Text

    from skerry.bulletin.inspection.follower import Follower
    from skerry.bulletin.inspection.islands import IslandRow

_STYLES = {
    "current": "green", "behind": "yellow", "failing": "bold red", "silent": "red",
    "stray": "bold red", "stopped": "dim",
}  # fmt: skip
_BARS = " ▁▂▃▄▅▆▇█"
_SPARK = 20


def top(
    bulletin: BulletinArgument,
    versions: Annotated[
        int, typer.Option(min=1, max=200, metavar="N", help="How many of the newest to show.")
    ] = 10,
    islands: Annotated[
        int, typer.Option(min=1, max=4096, metavar="N", help="How many islands to show.")
    ] = 30,
    once: Annotated[bool, typer.Option("--once", help="Look once, and end.")] = False,
    key: KeyOption = None,
    as_json: JsonOption = False,
) -> None:
    """Watch versions and islands; Ctrl-C ends it.

    Islands that need somebody come first.  Their statuses are their own word; the lag is counted
    from the log.  --json looks once.
    """
    from rich.console import Console
    from rich.live import Live

    from skerry.bulletin.inspection.follower import Follower
    from skerry.bulletin.stores import open_store
    from skerry.cli.failures import CommandError

    follower = Follower(open_store(bulletin), pinned_key=parse_key(key))
    if once or as_json:
        follower.look_once()
        if follower.snapshot.view.state.seq < 0:
            message = f"{bulletin}: expected a run, found no log"
            raise CommandError(message, acts="you: check the address")
        if as_json:
            print_json(_values(follower, versions, islands))
        else:
            Console(markup=False).print(_screen(follower, bulletin, versions, islands))
        return
    follower.start()
    console = Console(markup=False)
    try:
        with Live(console=console, screen=console.is_terminal, auto_refresh=False) as live:
            while True:
                follower.attend()
                live.update(_screen(follower, bulletin, versions, islands), refresh=True)
                time.sleep(1.0)
    except KeyboardInterrupt:
        follower.stop()
        if follower.asking:
            os._exit(0)  # the interpreter would wait for a store that never answers


def _rows(follower: Follower) -> list[IslandRow]:
    from skerry.bulletin.inspection.islands import arranged, island_row

    seen = follower.snapshot
    islands = seen.islands
    now_ms = islands.looked_ms or 0
    return arranged(
        island_row(seen.view, report, islands.looks.get(name, ()), now_ms=now_ms)
        for name, report in islands.reports.items()
    )


def _values(follower: Follower, versions: int, islands: int) -> dict[str, object]:
    from dataclasses import asdict

    from skerry.bulletin.inspection.islands import counted
    from skerry.bulletin.inspection.rows import version_page

    rows = _rows(follower)
    page = version_page(follower.snapshot.view, limit=versions)
    return {
        "versions": [asdict(row) for row in page.versions],
        "islands": [asdict(row) for row in rows[:islands]],
        "island_counts": asdict(counted(rows)),
        "refused_statuses": [asdict(one) for one in follower.snapshot.islands.refused],
    }


def _screen(follower: Follower, address: str, versions: int, islands: int) -> Group:
    from rich.console import Group
    from rich.text import Text

    report, seen = follower.store_state.report(), follower.snapshot
    rows = _rows(follower)
    lines: list[RenderableType] = [_text(address, style="bold")]
    if report.state != "ok":
        why = "" if report.problem is None else f": {report.problem.message}"
        waited = "" if report.pending_s is None else f", waiting for {report.pending_s:.0f} s"
        lines.append(_text(f"store {report.state}{waited}{why}", style="bold yellow"))
    lines += [_versions(follower, versions), Text(), _islands(rows[:islands])]
    hidden = len(rows) - islands
    if hidden > 0:
        lines.append(Text(f"and {hidden} islands more", style="dim"))
    for refused in seen.islands.refused[:5]:
        lines.append(_text(f"a status that is none: {refused.key}: {refused.why}", style="red"))
    if seen.islands.denied is not None:
        lines.append(_text(f"islands are not seen: {seen.islands.denied}", style="yellow"))
    return Group(*lines)


def _versions(follower: Follower, count: int) -> Table:
    from rich.table import Table

    from skerry.bulletin.inspection.rows import version_page

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("version", "parent", "step", "form", "state", "changed", "patch", "full/patch"):
        table.add_column(name, justify="left" if name in ("form", "state") else "right")
    table.add_column("committed")
    for row in version_page(follower.snapshot.view, limit=count).versions:
        table.add_row(
            str(row.version),
            "-" if row.parent is None else str(row.parent),
            f"{row.step:,}",
            row.form,
            row.state,
            "-" if row.share is None else f"{row.share:.3%}",
            size(row.patch_bytes),
            "-" if row.ratio is None else f"{row.ratio:,.0f}",
            moment(row.time_ms),
        )
    return table


def _islands(rows: list[IslandRow]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("island", "state", "version", "lag", "lag over time", "phase", "last seen", "why"):
        table.add_column(name, justify="right" if name in ("version", "lag") else "left")
    for row in rows:
        table.add_row(
            _text(row.island),
            _text(row.state, style=_STYLES[row.state]),
            "-" if row.version is None else str(row.version),
            str(row.lag),
            _spark([look.lag for look in row.looks]),
            _text(row.phase),
            f"{row.age_s:,.0f} s ago",
            _text(row.why or ""),
        )
    return table


def _text(said: str, style: str = "") -> Text:
    """Return what an island or a store says: no markup, and nothing that steers the terminal."""
    from rich.text import Text

    return Text(printable(said), style=style)


def _spark(lags: list[int]) -> str:
    shown = lags[-_SPARK:]
    most = max([*shown, 1])
    return "".join(_BARS[(len(_BARS) - 1) * lag // most] for lag in shown)
