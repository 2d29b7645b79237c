"""How long from a trainer's commit until an island serves it, and how many bytes on the wire?

`python -m skerry.benchmarks road`, or `skerry bench road`.  A real S3 server and a publisher on one
side of an emulated link, an agent with an engine on the other; beside them, in the same run and
over the same link, the download of the full checkpoint.  Each figure has its physical limit: bytes
over bandwidth and four round trips (a look at the log, the record's way, the request for the
pack, its first byte).
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from skerry.benchmarks.credentials import ACCESS_KEY, SECRET_KEY
from skerry.benchmarks.machine import machine
from skerry.benchmarks.road.link import FAR, Link, LinkSpec, LinkUnavailable, link
from skerry.benchmarks.road.messages import Child, child, end_in_order
from skerry.codec import kernel
from skerry.island_agent import AgentConfig

_ROUND_TRIPS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One transfer: payload and wire bytes, seconds since the commit (or the start), the limit."""

    congestion: str
    what: str  # "patch" | "full checkpoint"
    version: int | None
    nbytes: int
    wire_bytes: int
    arrived_s: float
    served_s: float | None
    limit_s: float
    phases: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is sent over what."""

    megabytes: float
    density: float
    versions: int
    in_memory: bool
    full: bool


def measure(spec: LinkSpec, controls: Sequence[str], settings: Settings, work: Path) -> list[Way]:
    """Send every version and a full checkpoint over the link, once by each congestion control."""
    environment = os.environ | {
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    ways: list[Way] = []
    with ExitStack() as stack:
        made = stack.enter_context(link(spec))

        def start(place: Callable[[Sequence[str]], list[str]], role: str, *words: object) -> Child:
            module = f"skerry.benchmarks.road.{role}"
            command = place([sys.executable, "-m", module, *map(str, words)])
            return stack.enter_context(child(command, environment))

        _tell("a simulated model, its first version")
        (work / "s3").mkdir()
        mbit = spec.bits_per_s / 1e6
        far = start(made.far, "far", work / "s3", FAR, settings.megabytes, settings.density, mbit)
        run = far.hear()
        memory = ["--memory"] if settings.in_memory else []
        for number, congestion in enumerate(controls):
            made.use(congestion)
            far.ask("restart")
            island = work / f"island-{number}"
            stack.callback(_remove_island, island, in_memory=settings.in_memory)
            _tell(f"{congestion}: the island takes its first version beside the store")
            seed = start(made.far, "near", run["url"], island, 0, *memory)
            seed.hear()
            seed.end()
            near = start(made.near, "near", run["url"], island, settings.versions, *memory)
            near.hear()
            for number in range(settings.versions):
                ways.append(_patch(made, far, near, congestion))
                _tell(
                    f"{congestion}: version {number + 1} of {settings.versions}, arrived after "
                    f"{ways[-1].arrived_s:.2f} s"
                )
            near.end()
            if settings.full:
                _tell(f"{congestion}: the full checkpoint, {run['nbytes'] / 1e6:.0f} MB")
                ways.append(_whole(made, start, run, work, congestion))
    return ways


def _patch(made: Link, far: Child, near: Child, congestion: str) -> Way:
    before = made.bytes_to_near()
    commit = far.ask("publish")
    served = near.hear()
    if served["version"] != commit["version"]:
        raise RuntimeError(f"published {commit['version']}, served {served['version']}")
    return Way(
        congestion=congestion,
        what="patch",
        version=commit["version"],
        nbytes=commit["nbytes"],
        wire_bytes=made.bytes_to_near() - before,
        arrived_s=served["steps"]["objects-spooled"] - commit["at"],
        served_s=served["served"] - commit["at"],
        limit_s=_limit(made.spec, commit["nbytes"]),
        phases=served["phases"],
    )


def _whole(
    made: Link, start: Callable[..., Child], run: Mapping[str, Any], work: Path, congestion: str
) -> Way:
    before = made.bytes_to_near()
    download = start(made.near, "whole", run["url"], work, *run["files"])
    found = download.hear()
    download.end()
    return Way(
        congestion=congestion,
        what="full checkpoint",
        version=None,
        nbytes=found["nbytes"],
        wire_bytes=made.bytes_to_near() - before,
        arrived_s=found["seconds"],
        served_s=None,
        limit_s=_limit(made.spec, found["nbytes"]),
        phases={},
    )


def _limit(spec: LinkSpec, nbytes: int) -> float:
    return 8 * nbytes / spec.bits_per_s + _ROUND_TRIPS * spec.round_trip_s


def _remove_island(directory: Path, *, in_memory: bool) -> None:
    shutil.rmtree(AgentConfig(directory=directory, in_memory=in_memory).root, ignore_errors=True)


def _tell(what: str) -> None:
    typer.echo(what, err=True)


def road(
    megabytes: Annotated[float, typer.Option(min=1, help="Of BF16 weights.")] = 1000.0,
    density: Annotated[float, typer.Option(min=1e-6, max=0.5, help="Of words that change.")] = 0.01,
    versions: Annotated[int, typer.Option(min=1, help="By each congestion control.")] = 5,
    congestion: Annotated[
        list[str] | None, typer.Option(show_default="cubic, bbr", help="Of TCP. Repeatable.")
    ] = None,
    round_trip_ms: Annotated[float, typer.Option(min=0, help="Of the link.")] = 80.0,
    loss: Annotated[float, typer.Option(min=0, max=0.5, help="Of packets, each way.")] = 0.005,
    mbit: Annotated[float, typer.Option(min=0.1, help="Of the link, a second.")] = 200.0,
    memory: Annotated[bool, typer.Option("--memory/--disk", help="Where the mirror is.")] = True,
    full: Annotated[
        bool, typer.Option("--full/--no-full", help="Download the full checkpoint as well.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Time versions from commit to served over an emulated link, beside a full checkpoint."""
    spec = LinkSpec(round_trip_s=round_trip_ms / 1000, loss=loss, bits_per_s=round(mbit * 1e6))
    settings = Settings(
        megabytes=megabytes, density=density, versions=versions, in_memory=memory, full=full
    )
    end_in_order()
    controls = congestion or ["cubic", "bbr"]
    with tempfile.TemporaryDirectory(prefix="skerry-road-") as name:
        try:
            ways = measure(spec, controls, settings, Path(name))
        except LinkUnavailable as error:
            typer.echo(f"error: {error}", err=True)
            raise typer.Exit(1) from None
    if as_json:
        shown = {"link": asdict(spec), "settings": asdict(settings)}
        here = machine(kernel.current().name)
        print(json.dumps({"machine": here, **shown, "ways": [asdict(way) for way in ways]}))
    else:
        _show(ways, spec)


def _show(ways: Sequence[Way], spec: LinkSpec) -> None:
    print(f"{spec}; limit: bytes over bandwidth and {_ROUND_TRIPS} round trips\n")
    print("| congestion | what | MB | on the wire | arrived, s | served, s | limit, s | of limit |")
    print("|---|---|---|---|---|---|---|---|")
    for way in ways:
        name = way.what if way.version is None else f"{way.what} {way.version}"
        served = "" if way.served_s is None else f"{way.served_s:.2f}"
        print(
            f"| {way.congestion} | {name} | {way.nbytes / 1e6:.2f} | {way.wire_bytes / 1e6:.2f} "
            f"| {way.arrived_s:.2f} | {served} | {way.limit_s:.2f} "
            f"| {way.arrived_s / way.limit_s:.2f} |"
        )
    for congestion in dict.fromkeys(way.congestion for way in ways):
        mine = [way for way in ways if way.congestion == congestion]
        served_s = median(way.served_s for way in mine if way.served_s is not None)
        arrived_s = median(way.arrived_s for way in mine if way.served_s is not None)
        share = median(way.arrived_s / way.limit_s for way in mine if way.served_s is not None)
        print(
            f"\n{congestion}, medians: a patch arrived {arrived_s:.2f} s after its commit "
            f"({share:.2f} of the limit), and was served after {served_s:.2f} s"
        )
        for whole in (way.arrived_s for way in mine if way.served_s is None):
            print(
                f"the full checkpoint took {whole:.1f} s to arrive, {whole / served_s:.0f} times "
                "as long"
            )


if __name__ == "__main__":
    typer.run(road)
