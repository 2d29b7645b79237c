"""How small and how fast is the codec, beside what others use, on the same bytes in the same run?

`python -m skerry.benchmarks.bench_codec`, or `skerry bench codec`.  A real RL trace is recorded
first (and used again by the next run); then steps of AdamW are simulated at several densities.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from skerry.benchmarks import simulate, trace
from skerry.benchmarks.cases import Plan, Tell, run_case
from skerry.benchmarks.options import numbers
from skerry.benchmarks.results import Case, Results
from skerry.benchmarks.rivals import EVERY_RIVAL, RIVALS
from skerry.benchmarks.submission import Submission, write
from skerry.benchmarks.tables import show
from skerry.codec import kernel

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

DENSITIES = "0.02,0.1,0.5,1.5,3,5"


class Only(StrEnum):
    """Which half to run."""

    TRACE = "trace"
    SIMULATED = "simulated"


class Rivals(StrEnum):
    """All of them, or the three that the demo shows."""

    ALL = "all"
    FAST = "fast"


@app.command()
def codec(
    only: Annotated[Only | None, typer.Option(help="Run this half only.")] = None,
    gigabytes: Annotated[
        float, typer.Option(min=0.0001, metavar="GB", help="Simulated weights of each case.")
    ] = 1.0,
    densities: Annotated[
        str, typer.Option(metavar="LIST", help="Changed words of a simulated step, in percent.")
    ] = DENSITIES,
    dtypes: Annotated[str, typer.Option(metavar="LIST", help="Dtypes to simulate.")] = ",".join(
        simulate.DTYPES
    ),
    threads: Annotated[
        str, typer.Option(metavar="LIST", help="Numbers of threads to measure with.")
    ] = "1,2",
    steps: Annotated[int, typer.Option(min=1, metavar="N", help="RL steps of a trace.")] = 6,
    model: Annotated[
        str, typer.Option(help="smollm2, or tiny: a random model, to try the benchmark itself.")
    ] = "smollm2",
    starts: Annotated[
        str, typer.Option(metavar="LIST", help="How the trace's master weights start.")
    ] = ",".join(trace.STARTS),
    trace_dir: Annotated[
        Path,
        typer.Option(
            file_okay=False,
            metavar="DIR",
            help="Where traces are kept: 0.27 GB of disk for each step of smollm2, twice.",
        ),
    ] = Path("bench-traces"),
    rivals: Annotated[Rivals, typer.Option(help="Which rivals to run.")] = Rivals.ALL,
    slice_mib: Annotated[
        int, typer.Option(min=1, metavar="MIB", help="Weights that slow rivals are measured on.")
    ] = 64,
    json_file: Annotated[
        Path | None,
        typer.Option("--json", dir_okay=False, metavar="FILE", help="Write the results there."),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Seeds weights and updates.")] = 0,
) -> None:
    """Measure the codec beside its rivals: size, speed and memory, every result proven exact.

    With the defaults about a quarter of an hour on two cores, 12 GB of memory and 4 GB of disk.
    """
    try:
        kernel.use_from(os.environ)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="SKERRY_KERNEL") from error
    began = time.monotonic()
    counts = sorted({1, *numbers(threads, int, "--threads")})
    shares = numbers(densities, float, "--densities")
    kinds, trace_starts = dtypes.split(","), starts.split(",")
    if wrong := [name for name in kinds if name not in simulate.DTYPES]:
        raise typer.BadParameter(f"no such dtype: {wrong[0]}", param_hint="--dtypes")

    def tell(what: str) -> None:
        print(f"[{time.monotonic() - began:5.0f} s] {what}", file=sys.stderr, flush=True)

    recipes = []
    if only is not Only.SIMULATED:
        try:
            recipes = [
                trace.Recipe(model=model, start=start, steps=steps, seed=seed)
                for start in trace_starts
            ]
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
    for recipe in recipes:
        tell(f"trace {recipe.start}")
        trace.ensure(trace_dir, recipe)
    plan = Plan(
        threads=counts,
        rivals=EVERY_RIVAL if rivals is Rivals.ALL else RIVALS,
        slice_bytes=slice_mib << 20,
    )
    settings = {
        "gigabytes": gigabytes, "densities": shares, "dtypes": kinds, "threads": counts,
        "steps": steps, "model": model, "starts": trace_starts, "rivals": rivals.value,
        "slice_bytes": plan.slice_bytes, "seed": seed,
    }  # fmt: skip
    submission = Submission("codec", settings)
    cases = chain.from_iterable(_trace_cases(trace_dir, recipe, plan, tell) for recipe in recipes)
    if only is not Only.TRACE:
        simulated = _simulated_cases(kinds, shares, int(gigabytes * 1e9), seed, plan, tell)
        cases = chain(cases, simulated)
    results = Results(machine=submission.machine, cases=[], seconds=0.0)
    for case in cases:
        results = replace(results, cases=[*results.cases, case], seconds=submission.seconds)
        # After every case: a run takes long, and may be ended.
        if json_file is not None:
            write(json_file, submission.document({"cases": list(map(asdict, results.cases))}))
    show(results)


def _trace_cases(directory: Path, recipe: trace.Recipe, plan: Plan, tell: Tell) -> Iterator[Case]:
    path = trace.ensure(directory, recipe)
    for step in range(1, recipe.steps + 1):
        name = f"{recipe.start}, step {step}"
        pair = trace.load_step(path, step)
        # Step 1 of Adam moves every weight by the learning rate; the last is nearest to the rest.
        measured = plan if step == recipe.steps else plan.sizes_only()
        yield run_case(name, "trace", "BF16", pair, measured, tell)
        del pair  # before the next is read


def _simulated_cases(
    kinds: Sequence[str],
    shares: Sequence[float],
    nbytes: int,
    seed: int,
    plan: Plan,
    tell: Tell,
) -> Iterator[Case]:
    for kind in kinds:
        for share in shares:
            name = f"{kind}, {share:g} %"
            tell(f"{name}: simulated")
            pair = simulate.simulate(
                kind, nbytes, share / 100, seed=seed, threads=max(plan.threads)
            )
            yield run_case(name, "simulated", kind, pair, plan, tell)
            del pair  # before the next is made


if __name__ == "__main__":
    app()
