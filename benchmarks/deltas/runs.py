"""Every run that `skerry bench deltas` is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import torch

from skerry.benchmarks import trace
from skerry.benchmarks.deltas.adam import PROFILES, AdamRecipe, simulated
from skerry.benchmarks.deltas.directories import run_of
from skerry.benchmarks.deltas.live import constant, falling, tuned
from skerry.benchmarks.deltas.observe import Observer
from skerry.benchmarks.deltas.results import Changed, Deltas, Measured
from skerry.benchmarks.deltas.states import Run
from skerry.trainer.run import source_model


class Source(StrEnum):
    """Where steps come from, beside directories."""

    LIVE = "live"
    RL = "rl"
    ADAM = "adam"
    LADDER = "ladder"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is run."""

    sources: Sequence[str]
    model: str
    start: str
    lrs: Sequence[float]
    lr_steps: int
    curve_steps: int
    warm_lr: float
    settled_lr: float
    warm_steps: int
    rl_steps: int
    betas: Sequence[tuple[float, float]]
    profiles: Sequence[str]
    adam_megabytes: float
    adam_steps: int
    densities: Sequence[float]
    megabytes: float
    slice_mib: float
    checkpoints: Sequence[str]
    seed: int


def measure(settings: Settings, observer: Observer, traces: Path) -> Deltas:
    """Run everything.  Raises NotExact, and ValueError for a directory without a run."""
    curve: list[Changed] = []
    changes: list[Changed] = []
    measured: list[Measured] = []

    def take(found: Iterator[Changed | Measured], counted: list[Changed]) -> None:
        for one in found:
            if isinstance(one, Changed):
                counted.append(one)
            else:
                measured.append(one)

    for directory in settings.checkpoints:
        take(observer.observe(run_of(Path(directory))), changes)
    if Source.LADDER in settings.sources:
        nbytes = int(settings.megabytes * 1e6)
        take(observer.ladder(settings.densities, nbytes, settings.seed), changes)
    if Source.ADAM in settings.sources:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # its tensors are small: threads would wait for one another
        for run in _adam_runs(settings):
            take(observer.observe(run), changes)
        torch.set_num_threads(threads)
    if Source.LIVE in settings.sources:
        rates, warm = _live_runs(settings)
        for run in rates:
            take(observer.observe(run), changes)
        take(observer.observe(warm), curve)
    if Source.RL in settings.sources:
        recipe = trace.Recipe(
            model=settings.model, start=settings.start, steps=settings.rl_steps, seed=settings.seed
        )
        take(observer.observe(run_of(trace.ensure(traces, recipe))), changes)
    return Deltas(curve=curve, changes=changes, measured=measured)


def _adam_runs(settings: Settings) -> Iterator[Run]:
    for profile in PROFILES:
        if profile not in settings.profiles:
            continue
        for betas in settings.betas:
            for lr in settings.lrs:
                recipe = AdamRecipe(
                    megabytes=settings.adam_megabytes, profile=profile, lr=lr, betas=betas,
                    steps=settings.adam_steps, seed=settings.seed,
                )  # fmt: skip
                yield Run(
                    source="simulated AdamW",
                    subject=f"{profile} weights, betas {betas[0]:g} {betas[1]:g}",
                    states=simulated(recipe),
                    measured=frozenset(),
                )


def _live_runs(settings: Settings) -> tuple[Iterator[Run], Run]:
    source = source_model(settings.model, settings.start, settings.seed)
    subject = f"{settings.model} SFT, {settings.start}"
    last = frozenset({settings.lr_steps})
    rates = (
        Run(
            source="live",
            subject=subject,
            states=tuned(source, constant(lr), settings.lr_steps),
            measured=last,
        )
        for lr in settings.lrs
    )
    schedule = falling(settings.warm_lr, settings.settled_lr, settings.warm_steps)
    warm = Run(
        source="live",
        subject=f"{subject}, warm-up",
        states=tuned(source, schedule, settings.curve_steps),
        measured=frozenset(),
    )
    return rates, warm
