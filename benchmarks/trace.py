"""A real trace: the BF16 checkpoints that the demo's model passes through in a run of GRPO.

`python -m skerry.benchmarks.trace DIR` records one: the trainer of the demo, its reward and its
prompts, with one engine in the same process that follows every step.  The directory holds
`step-000`, `step-001` and so on, checkpoints of their own, and `trace.json`, written last: the
settings, and what each step did.  A directory with `trace.json` is a whole trace.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from skerry.benchmarks.engine_gate import EngineGate
from skerry.benchmarks.weights import Pair
from skerry.codec.digest import Bytes
from skerry.publisher import Checkpoint
from skerry.publisher.arrays import ServedTensor
from skerry.trainer.prompts import encoded
from skerry.trainer.rl.grpo import LetterReward
from skerry.trainer.rl.learner import Learner, LearnerConfig
from skerry.trainer.rl.loop import RLTrainer, StepMetrics, TrainerConfig
from skerry.trainer.rl.report import to_json
from skerry.trainer.rl.rollouts import Sampling
from skerry.trainer.run import MODELS, source_model

STARTS = ("grid", "uniform")
MAX_BYTES = 8 << 30  # of one trace on disk
_KEPT_FREE = 1 << 30
RECORD = "trace.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What a trace is recorded with; one of the same recipe is not recorded again."""

    model: str = "smollm2"
    start: str = "grid"
    steps: int = 6
    lr: float = 1e-6
    prompts: int = 4
    samples: int = 4
    max_tokens: int = 16
    seed: int = 0

    def __post_init__(self) -> None:
        if self.model not in MODELS or self.start not in STARTS or self.steps < 1:
            raise ValueError(f"no such run: {self}")


def ensure(directory: Path, recipe: Recipe) -> Path:
    """Return a trace of this recipe below `directory`; record it in a process of its own if new."""
    path = directory / f"{recipe.model}-{recipe.start}"
    if not holds(path, recipe):
        shutil.rmtree(path, ignore_errors=True)
        options = [f"--{name.replace('_', '-')}={value}" for name, value in asdict(recipe).items()]
        subprocess.run([sys.executable, "-m", __name__, str(path), *options], check=True)
    return path


def holds(path: Path, recipe: Recipe) -> bool:
    """Say whether a whole trace of this recipe is there."""
    try:
        return bool(json.loads((path / RECORD).read_text())["recipe"] == asdict(recipe))
    except FileNotFoundError:
        return False


def load_step(path: Path, step: int) -> Pair:
    """Read the checkpoints before and after a step, counted from 1, into memory."""
    before, after = (Checkpoint.scan(path / _directory(n)) for n in (step - 1, step))

    def read(checkpoint: Checkpoint) -> dict[str, Bytes]:
        return {spec.name: checkpoint.read(spec).copy() for spec in checkpoint.layout.tensors}

    return Pair(layout=after.layout, old=read(before), new=read(after))


async def record(path: Path, recipe: Recipe) -> None:
    """Run the trainer and write the trace.  Raises OSError when the disk has too little room."""
    source = source_model(recipe.model, recipe.start, recipe.seed)
    weights = source.served()
    expected = (recipe.steps + 1) * sum(tensor.data.nbytes for tensor in weights.values())
    path.mkdir(parents=True)
    if expected > min(MAX_BYTES, shutil.disk_usage(path).free - _KEPT_FREE):
        raise OSError(f"{path}: a trace of {expected:,} bytes does not fit, or is over the limit")
    tokenizer = source.tokenizer()

    def write(served: Mapping[str, ServedTensor], step: int) -> None:
        checkpoint = Checkpoint.from_arrays(served, side_files=source.side_files)
        checkpoint.write_to(path / _directory(step))

    write(weights, 0)
    gate = await EngineGate.open(path / _directory(0), weights)

    async def publish(served: Mapping[str, ServedTensor], step: int) -> int:
        await asyncio.to_thread(write, served, step)
        await gate.install(served)
        return gate.version

    trainer = RLTrainer(
        Learner(source.model(), LearnerConfig(lr=recipe.lr)),
        gates=[gate],
        prompts=encoded(tokenizer),
        reward=LetterReward(tokenizer),
        publish=publish,
        config=TrainerConfig(
            sampling=Sampling(
                samples=recipe.samples, max_tokens=recipe.max_tokens, seed=recipe.seed
            ),
            prompts_per_step=recipe.prompts,
        ),
    )
    try:
        metrics = await trainer.run(recipe.steps, _tell)
    finally:
        await gate.engine.close()
    done = {"recipe": asdict(recipe), "steps": [to_json(step) for step in metrics]}
    (path / RECORD).write_text(json.dumps(done, indent=1) + "\n")


def _tell(step: StepMetrics) -> None:
    print(f"step {step.step}: reward {step.reward:.3f}", file=sys.stderr, flush=True)


def _directory(step: int) -> str:
    return f"step-{step:03}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m skerry.benchmarks.trace", description=__doc__)
    parser.add_argument("directory", type=Path, help="must not be there yet")
    for name, default in asdict(Recipe()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default)
    options = vars(parser.parse_args(argv))
    asyncio.run(record(options.pop("directory"), Recipe(**options)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
