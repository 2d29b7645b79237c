"""What does a deployment of any size take: seconds, dollars, requests, memory, and what saturates?

`python -m skerry.benchmarks scale`, or `skerry bench scale`.  Real publishers and agents run here
at some sizes; the model of docs/scale.md is fitted to them, held against real runs of other sizes,
and asked about deployments up to a trillion parameters.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from skerry.benchmarks.options import AsJson, Save, numbers
from skerry.benchmarks.scale.calibrate import (
    Checked,
    as_rows,
    check,
    rates_of,
    runs,
    sizes_by_density,
)
from skerry.benchmarks.scale.model import Deployment, Forecast, forecast
from skerry.benchmarks.scale.rates import EVERY_PRICE
from skerry.benchmarks.scale.run import Size
from skerry.benchmarks.submission import Submission, deliver
from skerry.codec import kernel

DEPLOYMENTS = (
    Deployment(parameters=8e9, trainer_hosts=1, islands=4, regions=2),
    Deployment(parameters=70e9, trainer_hosts=8, islands=32, regions=4),
    Deployment(parameters=235e9, trainer_hosts=32, islands=200, regions=6),
    Deployment(parameters=1e12, trainer_hosts=64, islands=1000, regions=10),
    Deployment(parameters=1e12, trainer_hosts=64, islands=1000, regions=10, relays=False),
    Deployment(parameters=1e12, trainer_hosts=64, islands=1000, regions=10, density=0.05),
    Deployment(parameters=1e12, trainer_hosts=64, islands=1000, regions=10, downlink_bits=1e9),
)


def scale(
    calibrate: Annotated[
        str, typer.Option(metavar="LIST", help="Megabytes of the runs to calibrate with.")
    ] = "80,240,640",
    at: Annotated[str, typer.Option(metavar="LIST", help="Their densities, in percent.")] = "0.2,1",
    checked: Annotated[
        str, typer.Option(metavar="LIST", help="Megabytes of the runs to hold the model against.")
    ] = "120,400,800",
    density: Annotated[float, typer.Option(min=1e-4, max=50, help="Theirs, in percent.")] = 0.5,
    rounds: Annotated[int, typer.Option(min=1, help="Turns; the least of each is kept.")] = 3,
    versions: Annotated[int, typer.Option(min=1, help="Of a run; the fastest counts.")] = 6,
    ladder_megabytes: Annotated[
        float, typer.Option(min=0.1, help="That patch sizes by density are measured on.")
    ] = 40.0,
    parameters: Annotated[
        float | None, typer.Option(min=1, help="A deployment of your own; the next options, too.")
    ] = None,
    hosts: Annotated[int, typer.Option(min=1, help="Trainer hosts.")] = 64,
    islands: Annotated[int, typer.Option(min=1)] = 1000,
    regions: Annotated[int, typer.Option(min=1)] = 10,
    step_s: Annotated[float, typer.Option(min=0.001, help="From one step to the next.")] = 60.0,
    step_density: Annotated[float, typer.Option(min=1e-4, max=50, help="In percent.")] = 0.5,
    speedup: Annotated[
        float, typer.Option(min=0.01, help="Of a host over this machine, all cores of both.")
    ] = 8.0,
    relays: Annotated[bool, typer.Option(help="A relay in each region.")] = True,
    save: Save = None,
    as_json: AsJson = False,
) -> None:
    """Calibrate the model of docs/scale.md here, check it, and ask it about large deployments."""
    kernel.use_from(os.environ)
    known = [
        Size(megabytes=megabytes, density=share / 100)
        for megabytes in numbers(calibrate, float, "--calibrate")
        for share in numbers(at, float, "--at")
    ]
    others = [
        Size(megabytes=megabytes, density=density / 100)
        for megabytes in numbers(checked, float, "--checked")
    ]
    if both := {size.megabytes for size in known} & {size.megabytes for size in others}:
        rule = f"sizes to check are not those to calibrate with, found {sorted(both)[0]:g} MB"
        raise typer.BadParameter(rule, param_hint="--checked")
    asked = list(DEPLOYMENTS)
    if parameters is not None:
        own = Deployment(
            parameters=parameters, trainer_hosts=hosts, islands=islands, regions=regions,
            step_s=step_s, density=step_density / 100, host_speedup=speedup, relays=relays,
        )  # fmt: skip
        asked = [own]
    submission = Submission(
        "scale",
        {"calibrated": [asdict(s) for s in known], "checked": [asdict(s) for s in others],
         "rounds": rounds, "versions": versions, "ladder_megabytes": ladder_megabytes},
    )  # fmt: skip

    def tell(what: str) -> None:
        print(f"[{submission.seconds:5.0f} s] {what}", file=sys.stderr, flush=True)

    ladder = sizes_by_density(ladder_megabytes, tell)
    seen = runs([*known, *others], rounds, versions, tell)
    rates = rates_of(seen[: len(known)], ladder)
    held = list(check(rates, seen[len(known) :]))
    forecasts = [forecast(deployment, rates) for deployment in asked]
    document = submission.document(
        {
            "rates": asdict(rates),
            "runs": [asdict(one) for one in seen],
            "checks": as_rows(held),
            "prices": {name: asdict(price) for name, price in EVERY_PRICE.items()},
            "forecasts": [
                {"deployment": asdict(it), **asdict(found), "seconds": found.seconds,
                 "saturates": found.saturates, "shortest_step_s": found.shortest_step_s}
                for it, found in zip(asked, forecasts, strict=True)
            ],
        }
    )  # fmt: skip
    if not deliver(document, save=save, as_json=as_json):
        _show(held, asked, forecasts)


def _show(held: Sequence[Checked], asked: Sequence[Deployment], found: Sequence[Forecast]) -> None:
    _table(
        ("real run", "", "predicted", "measured", "off by"),
        [
            (f"{one.size.megabytes:g} MB", one.what, f"{one.predicted:,.4g}",
             f"{one.measured:,.4g}", f"{one.off:+.1%}{'' if one.within else ' (over 20 %)'}")
            for one in held
        ],
    )  # fmt: skip
    _table(
        ("parameters", "hosts", "islands", "regions", "changed", "patch, GB", "s a version",
         "publish", "fetch", "follow", "trainer host, GB", "island host, GB", "GB out a day",
         "$ a day", "full, $ a day", "GET a day", "saturates first", "step at least, s"),
        [_line(it, one) for it, one in zip(asked, found, strict=True)],
    )  # fmt: skip


def _line(it: Deployment, one: Forecast) -> tuple[str, ...]:
    price = "internet"
    return (
        f"{it.parameters / 1e9:,.0f} B", f"{it.trainer_hosts}", f"{it.islands:,}",
        f"{it.regions}{'' if it.relays else ', no relays'}", f"{it.density:.2%}",
        f"{one.patch_bytes / 1e9:.3g}", f"{one.seconds:.1f}",
        f"{one.publish_s + one.upload_s:.1f}", f"{one.notice_s + one.fetch_s:.1f}",
        f"{one.follow_s:.1f}", f"{one.trainer_host_bytes / 1e9:.1f}",
        f"{one.island_host_bytes / 1e9:.1f}", f"{one.egress_bytes / 1e9:,.0f}",
        f"{one.egress_dollars[price]:,.0f}", f"{one.full_egress_dollars[price]:,.0f}",
        f"{one.gets:,.0f}", one.saturates, f"{one.shortest_step_s:.1f}",
    )  # fmt: skip


def _table(head: tuple[str, ...], body: Sequence[tuple[Any, ...]]) -> None:
    print(f"\n| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for row in body:
        print(f"| {' | '.join(map(str, row))} |")


if __name__ == "__main__":
    typer.run(scale)
