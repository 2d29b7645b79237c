"""How much do steps change, and what does each codec need to send it?

`python -m skerry.benchmarks deltas`, or `skerry bench deltas`.  Four sources: a live run on real
weights, directories of successive checkpoints (recorded traces among them), simulated AdamW by
learning rate and betas, and simulated single steps by density.  Every step is counted; some are
sent by every codec of the codec's benchmark, in BF16 and in FP8, and split by kind and by layer.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from skerry.benchmarks import trace
from skerry.benchmarks.cases import Plan
from skerry.benchmarks.deltas.adam import PROFILES
from skerry.benchmarks.deltas.groups import Breakdown
from skerry.benchmarks.deltas.observe import Observer
from skerry.benchmarks.deltas.report import write_report
from skerry.benchmarks.deltas.runs import Settings, Source, measure
from skerry.benchmarks.options import numbers
from skerry.benchmarks.page import PlotsUnavailable, figure_of
from skerry.benchmarks.rivals import EVERY_RIVAL
from skerry.benchmarks.submission import Submission, write
from skerry.codec import kernel

_LRS = "1e-7,1e-6,3e-6,1e-5,1e-4"
_DENSITIES = "0.02,0.1,0.5,1.5,3,5"
_GROUP_SLICE = 1 << 18  # bytes of each kind and layer that slow rivals get


def deltas(
    sources: Annotated[
        str, typer.Option(metavar="LIST", help="live, rl, adam, ladder; or none.")
    ] = "live,adam,ladder",
    checkpoints: Annotated[
        list[Path] | None,
        typer.Option(
            exists=True,
            file_okay=False,
            metavar="DIR",
            help="Successive checkpoints, one subdirectory each; a recorded trace. Repeatable.",
        ),
    ] = None,
    model: Annotated[str, typer.Option(help="smollm2, or tiny to try the benchmark.")] = "smollm2",
    start: Annotated[
        str, typer.Option(help="Master weights: uniform (all FP32 bits), or grid (BF16).")
    ] = "uniform",
    lrs: Annotated[str, typer.Option(metavar="LIST", help="Learning rates.")] = _LRS,
    lr_steps: Annotated[int, typer.Option(min=1, help="Steps at each rate.")] = 3,
    curve_steps: Annotated[int, typer.Option(min=2, help="Steps of the curve.")] = 20,
    warm_lr: Annotated[float, typer.Option(min=1e-12, help="At the curve's first step.")] = 1e-5,
    settled_lr: Annotated[float, typer.Option(min=1e-12, help="At its end.")] = 3e-6,
    warm_steps: Annotated[int, typer.Option(min=1, help="From the one to the other.")] = 10,
    rl_steps: Annotated[int, typer.Option(min=1, help="With source rl.")] = 6,
    betas: Annotated[
        str, typer.Option(metavar="LIST", help="Simulated AdamW's, as 0.9:0.999.")
    ] = "0.9:0.95,0.9:0.999",
    profiles: Annotated[
        str, typer.Option(metavar="LIST", help="Magnitudes of simulated weights: normal, heavy.")
    ] = ",".join(PROFILES),
    adam_megabytes: Annotated[float, typer.Option(min=0.1, help="Simulated AdamW's.")] = 8.0,
    adam_steps: Annotated[int, typer.Option(min=1, help="Simulated AdamW's.")] = 16,
    densities: Annotated[
        str, typer.Option(metavar="LIST", help="Changed words of simulated steps, percent.")
    ] = _DENSITIES,
    megabytes: Annotated[float, typer.Option(min=0.1, help="Of each of these.")] = 64.0,
    slice_mib: Annotated[
        int, typer.Option(min=1, metavar="MIB", help="Weights that slow rivals are measured on.")
    ] = 8,
    trace_dir: Annotated[
        Path, typer.Option(file_okay=False, metavar="DIR", help="Where source rl keeps its trace.")
    ] = Path("bench-traces"),
    out: Annotated[
        Path, typer.Option(file_okay=False, metavar="DIR", help="For CSV, JSON, plots and page.")
    ] = Path("bench-output/deltas"),
    save: Annotated[
        Path | None,
        typer.Option(dir_okay=False, metavar="FILE", help="Write the result there too."),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Seeds weights and updates.")] = 0,
) -> None:
    """Count what steps change, and measure every codec on them; about ten minutes on two cores."""
    try:
        kernel.use_from(os.environ)
        named = [] if sources == "none" else [Source(name) for name in sources.split(",")]
        pairs = [_betas(text) for text in betas.split(",")]
        trace.Recipe(model=model, start=start)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if unknown := set(profiles.split(",")) - set(PROFILES):
        raise typer.BadParameter(f"no such profile: {sorted(unknown)[0]}", param_hint="--profiles")
    settings = Settings(
        sources=named, model=model, start=start, lrs=numbers(lrs, float, "--lrs"),
        lr_steps=lr_steps, curve_steps=curve_steps, warm_lr=warm_lr, settled_lr=settled_lr,
        warm_steps=warm_steps, rl_steps=rl_steps, betas=pairs, profiles=profiles.split(","),
        adam_megabytes=adam_megabytes, adam_steps=adam_steps,
        densities=[share / 100 for share in numbers(densities, float, "--densities")],
        megabytes=megabytes, slice_mib=slice_mib, checkpoints=[str(p) for p in checkpoints or ()],
        seed=seed,
    )  # fmt: skip
    began = time.monotonic()

    def tell(what: str) -> None:
        print(f"[{time.monotonic() - began:5.0f} s] {what}", file=sys.stderr, flush=True)

    threads = os.cpu_count() or 1
    observer = Observer(
        plan=Plan(
            threads=[threads], rivals=EVERY_RIVAL, slice_bytes=slice_mib << 20, phases=False,
            memcpy=False, enough_s=0.0,
        ),
        breakdown=Breakdown(rivals=EVERY_RIVAL, slice_bytes=_GROUP_SLICE, threads=threads),
        tell=tell,
    )  # fmt: skip
    try:
        figure_of("", lambda axes: None)  # before minutes of work that it would be missed after
        submission = Submission("deltas", asdict(settings))
        found = measure(settings, observer, trace_dir)
        document = submission.document(asdict(found))
        write_report(out, found, document["form"])
    except PlotsUnavailable as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    except ValueError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    for path in filter(None, (out / "deltas.json", save)):
        write(path, document)
    print(json.dumps({"seconds": document["form"]["seconds"], "out": str(out)}))


def _betas(text: str) -> tuple[float, float]:
    first, second = (float(part) for part in text.split(":"))
    return first, second


if __name__ == "__main__":
    typer.run(deltas)
