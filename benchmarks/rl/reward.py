"""Does a real model learn from rollouts of two islands that are a version apart?

`python -m skerry.benchmarks rl reward`, or `skerry bench rl reward`.  A trainer publishes every
step to a bulletin directory; two agents with engines and gates, processes of their own, serve the
newest version and the one before it, and the trainer waits until they do.  Said are the rewards of
the first and the last quarter, over several seeds of sampling, what was dropped, and how far behind
the rollouts were.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from skerry.benchmarks.options import AsJson, Save
from skerry.benchmarks.rl.islands import two_islands
from skerry.benchmarks.rl.statistics import MAX_SEEDS, Interval, interval, quarters
from skerry.benchmarks.submission import Submission, deliver
from skerry.bulletin.stores import open_store
from skerry.publisher import Publisher, PublisherConfig
from skerry.publisher.arrays import Served
from skerry.trainer.prompts import QUESTIONS, encoded
from skerry.trainer.rl.grpo import LetterReward
from skerry.trainer.rl.learner import Learner, LearnerConfig
from skerry.trainer.rl.loop import RLTrainer, StepMetrics, TrainerConfig
from skerry.trainer.rl.report import tally_json, to_json
from skerry.trainer.rl.rollouts import Sampling
from skerry.trainer.rl.tally import Tally
from skerry.trainer.run import RECIPE, source_model

_WAIT_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One run's, but for the seed of its sampling."""

    model: str
    lr: float
    steps: int
    prompts: int
    samples: int
    max_tokens: int
    max_off_policy_steps: int

    def trainer(self, seed: int) -> TrainerConfig:
        """Return the loop's configuration with one seed."""
        sampling = Sampling(
            samples=self.samples, max_tokens=self.max_tokens, wait_s=_WAIT_S, seed=seed
        )
        return TrainerConfig(
            sampling=sampling,
            max_off_policy_steps=self.max_off_policy_steps,
            prompts_per_step=self.prompts,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one seed gave: rewards by quarter, what became of all rollouts, and every step."""

    seed: int
    first: float
    last: float
    tally: Tally
    steps: list[StepMetrics]
    seconds: float


async def one_run(settings: Settings, seed: int, work: Path) -> Run:
    """Train over two islands and return what came of it."""
    began = time.perf_counter()
    source = source_model(settings.model, "grid", 0)
    tokenizer = source.tokenizer()
    publisher = Publisher.open(
        open_store(str(work / "bulletin")), config=PublisherConfig(writer="trainer")
    )

    def put(weights: Mapping[str, Served], step: int) -> int:
        report = publisher.publish_arrays(
            weights, step=step, side_files=source.side_files, recipe=RECIPE
        )
        return report.version

    first = await asyncio.to_thread(put, source.served(), 0)
    async with two_islands(work / "bulletin", work) as islands:
        await islands.start()

        async def publish(weights: Mapping[str, Served], step: int) -> int:
            version = await asyncio.to_thread(put, weights, step)
            await islands.follow(version)
            return version

        trainer = RLTrainer(
            Learner(source.model(), LearnerConfig(lr=settings.lr)),
            gates=islands.gates,
            prompts=encoded(tokenizer, QUESTIONS[: settings.prompts], system=None),
            reward=LetterReward(tokenizer),
            publish=publish,
            config=settings.trainer(seed),
            first_version=first,
        )
        steps = await trainer.run(settings.steps, lambda step: _tell(seed, step))
    total = Tally()
    for step in steps:
        total.add(step.tally)
    start, end = quarters([step.reward for step in steps])
    seconds = time.perf_counter() - began
    return Run(seed=seed, first=start, last=end, tally=total, steps=steps, seconds=seconds)


def _tell(seed: int, step: StepMetrics) -> None:
    lags = tally_json(step.tally)["lags"]
    seconds = sum(step.seconds.values())
    print(
        f"seed {seed} step {step.step}: reward {step.reward:.3f}, lags {lags}, {seconds:.0f} s",
        file=sys.stderr,
        flush=True,
    )


def reward(
    seeds: Annotated[int, typer.Option(min=2, max=MAX_SEEDS, help="Of the sampling.")] = 3,
    model: Annotated[str, typer.Option(help="smollm2, or tiny for a quick look.")] = "smollm2",
    lr: Annotated[float, typer.Option(min=0, help="AdamW's learning rate.")] = 3e-5,
    steps: Annotated[int, typer.Option(min=4, help="Optimizer steps of a run.")] = 16,
    prompts: Annotated[int, typer.Option(min=2, max=8, help="Groups of a step.")] = 4,
    samples: Annotated[int, typer.Option(min=2, help="Rollouts of a group.")] = 6,
    max_tokens: Annotated[int, typer.Option(min=1, help="Of a rollout.")] = 12,
    max_off_policy_steps: Annotated[
        int, typer.Option(min=1, help="How old a rollout may be when it is learned from.")
    ] = 2,
    save: Save = None,
    as_json: AsJson = False,
) -> None:
    """Train over two islands that are one version apart, once for each seed."""
    settings = Settings(
        model=model, lr=lr, steps=steps, prompts=prompts, samples=samples,
        max_tokens=max_tokens, max_off_policy_steps=max_off_policy_steps,
    )  # fmt: skip
    submission = Submission("rl reward", asdict(settings))
    runs = []
    for seed in range(seeds):
        gc.collect()  # the weights of the run before hang in cycles, and are gigabytes
        with tempfile.TemporaryDirectory(prefix="skerry-rl-") as work:
            runs.append(asyncio.run(one_run(settings, seed, Path(work))))
    gain, total = interval([run.last - run.first for run in runs]), Tally()
    for run in runs:
        total.add(run.tally)
    document = submission.document(_results(runs, gain, total))
    if not deliver(document, save=save, as_json=as_json):
        _say(settings, runs, gain, total)


def _results(runs: list[Run], gain: Interval, total: Tally) -> dict[str, Any]:
    return {
        "gain": asdict(gain),
        "all": tally_json(total),
        "runs": [
            {
                "seed": run.seed,
                "first_quarter": run.first,
                "last_quarter": run.last,
                "seconds": run.seconds,
                **tally_json(run.tally),
                "steps": [to_json(step) for step in run.steps],
            }
            for run in runs
        ],
    }


def _say(settings: Settings, runs: list[Run], gain: Interval, total: Tally) -> None:
    print(
        f"{settings.model}, lr {settings.lr:g}, {settings.steps} steps of {settings.prompts} x "
        f"{settings.samples} rollouts of up to {settings.max_tokens} tokens\n"
    )
    print("| seed | first quarter | last quarter | gain | dropped | lags of rollouts | s |")
    print("|---|---|---|---|---|---|---|")
    for run in runs:
        print(
            f"| {run.seed} | {run.first:.4f} | {run.last:.4f} | {run.last - run.first:+.4f} "
            f"| {run.tally.dropped_share:.1%} | {_histogram(run.tally)} | {run.seconds:.0f} |"
        )
    print(f"\ngain of the last quarter over the first: {gain}")
    print(f"dropped: {total.dropped_share:.2%} {total.dropped_by}; refused: {total.refused}")
    print(f"lags in steps: {_histogram(total)}")


def _histogram(tally: Tally) -> str:
    made = tally.lags.total()
    ordered = sorted(tally.lags.items(), key=lambda item: (item[0] is None, item[0] or 0))
    return ", ".join(f"{lag}: {count} ({count / made:.0%})" for lag, count in ordered)
