"""The results as tables on a terminal; every figure says what it was measured on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table

from skerry.benchmarks.results import Case, Results, Row

_SIDE_BY_SIDE = 6  # cases
_ORDER = (
    "scan",
    "encode",
    "decode + apply",
    "encode + BLAKE3",
    "decode + BLAKE3 + apply",
    "BLAKE3 of all weights",
)
_WIDTH = 150  # no table is narrower: figures are not to be cut

_NOTES = """B/changed: bytes per changed word, framing counted.  of bound: that over the cost of
positions and steps given the old exponents.  GB/s: 10^9 bytes of weights a second, for {threads}
threads; decode includes writing the words in place, neither includes digests.  peak: MB of memory
on top of the weights, the result included, at the most threads.  on: what was measured, where that
is not all weights at all numbers of threads.  BLAKE3 hashes the leaves that changed unless it says
all, on all cores.  Every codec gave the exact weights back."""


def show(results: Results, console: Console | None = None) -> None:
    """Print everything."""
    console = console or Console(markup=False, highlight=False)
    console.width = max(console.width, _WIDTH)
    about = results.machine
    console.print(
        f"{about['cpu']}, {about['cores']} cores, kernel {about['kernel']}; "
        f"{results.seconds:.0f} s in all"
    )
    for first in range(0, len(results.cases), _SIDE_BY_SIDE):
        console.print(_sizes(results.cases[first : first + _SIDE_BY_SIDE]))
    for case in results.cases:
        console.print(f"\n{title(case)}")
        console.print(_rows(case))
        if case.phases:
            console.print(_phases(case))
    threads = " / ".join(str(n) for n in results.cases[0].memcpy) if results.cases else ""
    console.print("\n" + _NOTES.format(threads=threads))


def title(case: Case) -> str:
    return (
        f"{case.name}: {case.changed:,} of {case.words:,} words changed "
        f"({case.changed / max(case.words, 1):.4%}), {case.weights_bytes / 1e6:,.0f} MB of "
        f"{case.dtype}; bound {case.bound:.3f} B/changed, without context {case.free_bound:.3f}"
    )


def _sizes(cases: Sequence[Case]) -> Table:
    """Bytes per changed word, all cases side by side."""
    names = list(dict.fromkeys(row.codec for case in cases for row in case.rows))
    table = Table("bytes per changed word")
    for case in cases:
        table.add_column(case.name, justify="right")
    table.add_row("changed", *(f"{case.changed / max(case.words, 1):.3%}" for case in cases))
    table.add_row("bound", *(f"{case.bound:.3f}" for case in cases))
    table.add_row("bound without context", *(f"{case.free_bound:.3f}" for case in cases))
    for name in names:
        found = ({row.codec: row for row in case.rows}.get(name) for case in cases)
        table.add_row(name, *(_size(row) for row in found))
    return table


def _size(row: Row | None) -> str:
    if row is None or row.missing:
        return "-"
    return f"{row.bytes_per_changed:.3f}"


def _rows(case: Case) -> Table:
    table = Table()
    table.add_column("codec", no_wrap=True)
    table.add_column("who")
    for column in ("B/changed", "of bound", "encode GB/s", "decode GB/s", "peak enc / dec", "on"):
        table.add_column(column, justify="right")
    for row in case.rows:
        if row.missing:
            table.add_row(row.codec, row.used_by, "-", "-", "-", "-", "-", row.missing)
            continue
        last = row.speeds[-1]
        sliced = row.weights_bytes < case.weights_bytes
        own = last.threads is None
        table.add_row(
            row.codec,
            row.used_by,
            f"{row.bytes_per_changed:.3f}",
            f"{row.bytes_per_changed / case.bound:.2f}" if case.bound else "-",
            _join(_gbs(speed.encode) for speed in row.speeds),
            _join(_gbs(speed.decode) for speed in row.speeds),
            _join((_mb(last.encode_peak_bytes), _mb(last.decode_peak_bytes))),
            ", ".join(
                [f"{row.weights_bytes / 1e6:.0f} MB"] * sliced
                + ["threads of its own"] * own
                + [f"{last.threads} threads"] * (len(row.speeds) == 1 and not own)
            ),
        )
    return table


def _phases(case: Case) -> Table:
    copied = ", ".join(f"{_gbs(speed)} with {n}" for n, speed in case.memcpy.items())
    table = Table("Skerry, default", caption=f"warm memcpy: {copied} (GB/s, threads)")
    counts = sorted({phase.threads for phase in case.phases})
    for count in counts:
        plural = "thread" if count == 1 else "threads"
        table.add_column(f"GB/s, {count} {plural}", justify="right")
        table.add_column("of memcpy", justify="right")
        if count > 1:
            table.add_column("of memcpy with 1", justify="right")
    for name in sorted({phase.name for phase in case.phases}, key=_ORDER.index):
        cells = []
        for phase in case.phases:
            if phase.name == name:
                cells += [_gbs(phase.speed), f"{phase.of_memcpy:.2f}"]
                cells += [f"{phase.of_memcpy_1:.2f}"] * (phase.threads > 1)
        table.add_row(name, *cells)
    return table


def _join(cells: Iterable[str]) -> str:
    return " / ".join(cells)


def _gbs(speed: float) -> str:
    return f"{speed / 1e9:.2f}"


def _mb(nbytes: int | None) -> str:
    return "-" if nbytes is None else f"{nbytes / 1e6:.0f}"
