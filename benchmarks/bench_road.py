"""How long from a trainer's commit until islands serve it, and what does it take on the way?

`python -m skerry.benchmarks road`, or `skerry bench road`.  A real S3 server and a publisher on one
side of an emulated link; on the other one island or several that share it, each an agent with an
engine.  Beside them, in the same run and over the same link: a file of XOR and zstd for each
version, and the download of the full checkpoint.  Each figure has its physical limit: bytes over
bandwidth and four round trips (a look at the log, the record's way, the request for the pack, its
first byte).
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from skerry.benchmarks.options import AsJson, Save, numbers
from skerry.benchmarks.road.link import LinkUnavailable
from skerry.benchmarks.road.links import LINKS, parse
from skerry.benchmarks.road.messages import end_in_order
from skerry.benchmarks.road.ways import FULL, PATCH, ROUND_TRIPS, XOR, Settings, Way, measure
from skerry.benchmarks.submission import Submission, deliver

_WAYS = {"patch": PATCH, "xor": XOR, "full": FULL}


def road(
    links: Annotated[
        str, typer.Option(metavar="LIST", help="lan, 1g, 200m, or MBIT:MS:LOSS with % of loss.")
    ] = ",".join(LINKS),
    megabytes: Annotated[float, typer.Option(min=1, help="Of BF16 weights.")] = 64.0,
    density: Annotated[float, typer.Option(min=1e-6, max=0.5, help="Of words that change.")] = (
        0.005
    ),
    versions: Annotated[int, typer.Option(min=1, help="By each way.")] = 3,
    islands: Annotated[str, typer.Option(metavar="LIST", help="How many share the link.")] = "1,8",
    ways: Annotated[str, typer.Option(metavar="LIST", help="patch, xor, full.")] = ",".join(_WAYS),
    congestion: Annotated[
        list[str] | None, typer.Option(show_default="cubic", help="Of TCP. Repeatable.")
    ] = None,
    memory: Annotated[bool, typer.Option("--memory/--disk", help="Where the mirror is.")] = True,
    save: Save = None,
    as_json: AsJson = False,
) -> None:
    """Time versions from commit to served over emulated links, beside what others send."""
    try:
        specs = dict(parse(text) for text in links.split(","))
        chosen = [_WAYS[name] for name in ways.split(",")]
    except (ValueError, KeyError) as error:
        raise typer.BadParameter(str(error)) from error
    settings = Settings(
        megabytes=megabytes, density=density, versions=versions, ways=chosen,
        islands=numbers(islands, int, "--islands"), in_memory=memory,
    )  # fmt: skip
    controls = congestion or ["cubic"]
    described = {name: asdict(spec) for name, spec in specs.items()}
    submission = Submission(
        "road", {**asdict(settings), "links": described, "congestion": controls}
    )
    end_in_order()

    def tell(what: str) -> None:
        print(f"[{submission.seconds:5.0f} s] {what}", file=sys.stderr, flush=True)

    found: list[Way] = []
    with tempfile.TemporaryDirectory(prefix="skerry-road-") as name:
        try:
            for number, (link, spec) in enumerate(specs.items()):
                found += measure(link, spec, controls, settings, Path(name) / str(number), tell)
        except LinkUnavailable as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(1) from None
    document = submission.document({"ways": [asdict(way) for way in found]})
    if deliver(document, save=save, as_json=as_json):
        return
    for link, spec in specs.items():
        print(f"{link}: {spec}")
    _show(found)


def groups(found: Sequence[Way]) -> Iterator[list[Way]]:
    """Yield the versions of each way over each link, together."""
    keys = dict.fromkeys((way.link, way.congestion, way.islands, way.what) for way in found)
    for key in keys:
        yield [way for way in found if (way.link, way.congestion, way.islands, way.what) == key]


def _show(found: Sequence[Way]) -> None:
    print(f"medians; limit: bytes over bandwidth and {ROUND_TRIPS} round trips\n")
    print(
        "| link | TCP | islands | what | MB each | MB on the wire | arrived, s | limit, s "
        "| of limit | served, s | pause, ms | trainer CPU s | island CPU s | island peak, MB |"
    )
    print("|---|" + "---|" * 13)
    for some in groups(found):
        one = some[0]
        arrived, limit = median(w.arrived_s for w in some), median(w.limit_s for w in some)
        cpu = [w.publish_cpu_s for w in some if w.publish_cpu_s is not None]
        print(
            f"| {one.link} | {one.congestion} | {one.islands} | {one.what} "
            f"| {median(w.nbytes for w in some) / 1e6:.2f} "
            f"| {median(w.wire_bytes for w in some) / 1e6:.2f} | {arrived:.2f} | {limit:.2f} "
            f"| {arrived / limit:.2f} | {median(w.served_s for w in some):.2f} "
            f"| {1000 * median(w.pause_s for w in some):.0f} "
            f"| {f'{median(cpu):.2f}' if cpu else ''} "
            f"| {median(w.island_cpu_s for w in some):.2f} "
            f"| {median(w.island_peak_bytes for w in some) / 1e6:.0f} |"
        )


if __name__ == "__main__":
    typer.run(road)
