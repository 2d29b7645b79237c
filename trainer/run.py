"""One training run as a process: `python -m skerry.trainer.run`.

Publishes the model as version 0, then trains and publishes after every step.  What happens is told
as JSON lines in a file, flushed line by line, so that another process can follow and a crash loses
nothing that was told:

    {"event": "published", "version": 0, ...}       a PublishReport
    {"event": "step", "step": 1, ...}               `skerry.trainer.rl.report.to_json`
    {"event": "done"}
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TextIO

import torch

from skerry.bulletin.signing import Signer
from skerry.bulletin.stores import open_store
from skerry.codec import kernel
from skerry.codec.level import Level
from skerry.inference.client import RolloutClient
from skerry.publisher import Publisher, PublisherConfig
from skerry.publisher.arrays import Served
from skerry.publisher.threads import thread_count
from skerry.trainer.device_publisher import DevicePublisher
from skerry.trainer.precision import served_on
from skerry.trainer.prompts import encoded
from skerry.trainer.rl.groups import GroupRule, Missing
from skerry.trainer.rl.grpo import LetterReward
from skerry.trainer.rl.importance import Bound, Importance
from skerry.trainer.rl.learner import Learner, LearnerConfig
from skerry.trainer.rl.loop import RLTrainer, StepMetrics, TrainerConfig
from skerry.trainer.rl.report import to_json
from skerry.trainer.rl.rollouts import Sampling
from skerry.trainer.smollm2 import smollm2
from skerry.trainer.source import SourceModel
from skerry.trainer.tiny import tiny_llama, tiny_moe

MODELS = ("smollm2", "tiny", "tiny-moe")
_PACE_S = 300.0
RECIPE = {"dtype": "BF16", "rounding": "nearest-even", "source": "FP32 master weights"}


class Events:
    """The file that tells what happened."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def tell(self, event: str, fields: Mapping[str, object] | None = None) -> None:
        self._file.write(json.dumps({"event": event, **(fields or {})}) + "\n")
        self._file.flush()


def source_model(name: str, start: str, seed: int) -> SourceModel:
    """Return a model by name; `start` is "grid" or "uniform" and matters to real weights only."""
    if name == "tiny":
        return tiny_llama(seed)
    if name == "tiny-moe":
        return tiny_moe(seed)
    return smollm2("uniform" if start == "uniform" else "grid", seed=seed)


async def run(options: argparse.Namespace, events: Events) -> None:
    """Train for `options.steps` steps."""
    source = source_model(options.model, options.start, options.seed)
    tokenizer = source.tokenizer()
    device = torch.device(options.device)
    publisher = Publisher.open(
        open_store(options.bulletin),
        signer=None if options.sign is None else Signer.load(options.sign),
        config=PublisherConfig(
            writer="trainer",
            threads=thread_count(options.threads),
            level="auto" if options.level == "auto" else Level(options.level),
            link_mbit=options.link_mbit,
        ),
    )

    # On the CPU the ordinary path is tens of times quicker: its kernel needs no sort.
    publish_arrays = (
        publisher.publish_arrays
        if device.type == "cpu"
        else DevicePublisher(publisher).publish_arrays
    )

    async def publish(weights: Mapping[str, Served], step: int) -> int:
        if options.every_version and published:
            await asyncio.gather(*(_serves(gate, published[-1]) for gate in gates))
        report = await asyncio.to_thread(
            publish_arrays,
            weights,
            step=step,
            side_files=source.side_files,
            recipe=RECIPE,
        )
        events.tell("published", asdict(report))
        published.append(report.version)
        return report.version

    published: list[int] = []

    def tell(step: StepMetrics) -> None:
        observe(step)
        events.tell("step", to_json(step))

    async with AsyncExitStack() as stack:
        observe = stack.enter_context(_metrics(options.metrics_port))
        gates = [await stack.enter_async_context(RolloutClient(url)) for url in options.gate]
        first = await publish(served_on(device, source.weights.items()), 0)
        trainer = RLTrainer(
            Learner(source.model(), _learner_config(options)),
            gates=gates,
            prompts=encoded(tokenizer),
            reward=LetterReward(tokenizer),
            publish=publish,
            config=TrainerConfig(
                sampling=Sampling(
                    samples=options.samples,
                    max_tokens=options.max_tokens,
                    wait_s=options.wait_s,
                    seed=options.seed,
                    routed_experts=options.replay,
                ),
                max_off_policy_steps=options.max_off_policy_steps,
                groups=GroupRule(
                    max_spread_steps=options.max_group_spread, missing=Missing(options.missing)
                ),
                prompts_per_step=options.prompts,
            ),
            first_version=first,
        )
        await trainer.run(options.steps, tell)
    events.tell("done")


def _learner_config(options: argparse.Namespace) -> LearnerConfig:
    return LearnerConfig(
        lr=options.lr,
        device=options.device,
        importance=Importance(bound=Bound(options.bound)),
        replay=options.replay,
    )


@contextmanager
def _metrics(port: int | None) -> Iterator[Callable[[StepMetrics], None]]:
    """Yield what is told of every step, and with a port show it there."""
    if port is None:
        yield lambda _: None
        return
    from skerry.trainer.rl.metrics import RLMetrics, serving

    metrics = RLMetrics()
    with serving(metrics, port):
        yield metrics.observe


async def _serves(gate: RolloutClient, version: int) -> None:
    """Return once the gate serves `version` or a newer one: the gate itself does the waiting."""
    await gate.complete([0], accepted=f"{version}..", wait_s=_PACE_S, max_tokens=1)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m skerry.trainer.run", description=__doc__)
    parser.add_argument("--bulletin", required=True)
    parser.add_argument("--gate", action="append", required=True, help="URL; once for each gate")
    parser.add_argument("--events", type=Path, required=True, help="the file of JSON lines")
    parser.add_argument("--model", choices=MODELS, default="smollm2")
    parser.add_argument("--start", choices=("grid", "uniform"), default="grid")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--lr", type=float, default=1e-6)
    parser.add_argument("--prompts", type=int, default=4, help="prompts of a step")
    parser.add_argument("--samples", type=int, default=4, help="rollouts of a prompt")
    parser.add_argument("--max-tokens", type=int, default=16)
    parser.add_argument("--max-off-policy-steps", type=int, default=2)
    parser.add_argument(
        "--bound", choices=[*Bound], default=Bound.TRUNCATED, help="of the importance ratios"
    )
    parser.add_argument(
        "--max-group-spread",
        type=int,
        default=None,
        help="optimizer steps that the versions of one prompt's rollouts may lie apart",
    )
    parser.add_argument(
        "--missing", choices=[*Missing], default=Missing.KEEP, help="of a group: what is done"
    )
    parser.add_argument(
        "--replay",
        action="store_true",
        help="send tokens to the experts that the engines sent them to; for sparse models",
    )
    parser.add_argument(
        "--metrics-port", type=int, default=None, help="serve Prometheus' text on 127.0.0.1"
    )
    parser.add_argument("--wait-s", type=float, default=120.0)
    parser.add_argument(
        "--threads",
        type=int,
        default=None,
        help="torch's threads, and as many that encode; default: torch's choice, all usable CPUs",
    )
    parser.add_argument(
        "--level",
        choices=("auto", *Level),
        default="default",  # the demo compares sizes: they must not depend on how busy a machine is
        help="of patches; auto: the one that brings them to followers soonest",
    )
    parser.add_argument(
        "--link-mbit",
        type=float,
        default=None,
        help="for --level auto: megabits a second of the slowest island's link",
    )
    parser.add_argument(
        "--device",
        default="cpu",
        help="of the master weights, as torch names it; what changed is found on it",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--every-version",
        action="store_true",
        help="publish a version only when every gate serves the one before, so that none is "
        "skipped by an island that catches up",
    )
    parser.add_argument("--sign", type=Path, default=None, help="private key")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    try:
        kernel.use_from(os.environ)
    except ValueError as error:
        print(f"python -m skerry.trainer.run: SKERRY_KERNEL: {error}", file=sys.stderr)
        return 2
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    with options.events.open("w") as file:
        asyncio.run(run(options, Events(file)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
