"""What does a version cost when an adapter is trained: published as adapter, or merged as a patch?

`python -m skerry.benchmarks rl adapters`, or `skerry bench rl adapters`.  One RL run trains a LoRA;
each step is published twice: the adapter, in a run of its own that names the base, and the merged
weights, in the base's run.  Agents follow both to the last version, and what they hold is compared
with what was published, byte for byte.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from skerry.benchmarks.engine_gate import EngineGate
from skerry.benchmarks.options import AsJson, Save
from skerry.benchmarks.submission import Submission, deliver
from skerry.bulletin.reader import BulletinReader
from skerry.bulletin.stores import open_store
from skerry.codec.level import Level
from skerry.codec.weights import digest_weights
from skerry.island_agent import Agent, AgentConfig
from skerry.publisher import AdapterBase, Checkpoint, Publisher, PublisherConfig, PublishReport
from skerry.publisher.arrays import Served
from skerry.trainer.lora import LoraConfig, adapter_checkpoint, add_lora, merged_weights
from skerry.trainer.prompts import QUESTIONS, encoded
from skerry.trainer.rl.grpo import LetterReward
from skerry.trainer.rl.learner import Learner, LearnerConfig
from skerry.trainer.rl.loop import RLTrainer, StepMetrics, TrainerConfig
from skerry.trainer.rl.rollouts import Sampling
from skerry.trainer.run import RECIPE, source_model

_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """One version as a follower downloads it: its form, its bytes, and what changed."""

    kind: str
    nbytes: int
    full_bytes: int
    changed: int | None
    elements: int

    @classmethod
    def of(cls, report: PublishReport) -> Wire:
        form = report.full_bytes if report.patch_bytes is None else report.patch_bytes
        return cls(
            kind=report.kind,
            nbytes=form + report.record_bytes,
            full_bytes=report.full_bytes,
            changed=report.changed,
            elements=report.elements,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """One step, both ways; step 0 is the base, and the adapter that is nothing yet."""

    step: int
    reward: float | None
    adapter: Wire
    merged: Wire


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One run."""

    model: str
    rank: int
    lr: float
    steps: int
    prompts: int
    samples: int
    max_tokens: int


async def measure(settings: Settings, work: Path) -> list[Version]:
    """Train, publish both ways, follow both, compare.  Raises AssertionError when bytes differ."""
    source = source_model(settings.model, "grid", 0)
    tokenizer = source.tokenizer()
    shape = LoraConfig(rank=settings.rank, alpha=2 * settings.rank, targets=_PROJECTIONS)
    # The level must not depend on how busy the machine is: sizes are compared.
    config = PublisherConfig(writer="trainer", level=Level.DEFAULT, anchor_ratio=None)
    stores = {name: open_store(str(work / name)) for name in ("merged", "adapters")}
    publishers = {name: Publisher.open(store, config=config) for name, store in stores.items()}
    model = add_lora(source.model(), shape)
    learner = Learner(model, LearnerConfig(lr=settings.lr), weights=merged_weights)
    reports: list[tuple[PublishReport, PublishReport]] = []
    last: dict[str, Checkpoint] = {}

    def put(weights: Mapping[str, Served], step: int) -> int:
        last["merged"] = Checkpoint.from_arrays(
            weights, side_files=source.side_files, recipe=RECIPE
        )
        merged = publishers["merged"].publish(last["merged"], step=step)
        base = AdapterBase.of(publishers["merged"].reader.state, 0)
        last["adapters"] = adapter_checkpoint(model, shape, base)
        adapter = publishers["adapters"].publish(last["adapters"], step=step)
        reports.append((adapter, merged))
        return merged.version

    first = learner.served()
    put(first, 0)
    last["merged"].write_to(work / "base")
    gate = await EngineGate.open(work / "base", first)

    async def publish(weights: Mapping[str, Served], step: int) -> int:
        version = await asyncio.to_thread(put, weights, step)
        await gate.install(weights)
        return version

    trainer = RLTrainer(
        learner,
        gates=[gate],
        prompts=encoded(tokenizer, QUESTIONS[: settings.prompts], system=None),
        reward=LetterReward(tokenizer),
        publish=publish,
        config=TrainerConfig(
            sampling=Sampling(samples=settings.samples, max_tokens=settings.max_tokens),
            prompts_per_step=settings.prompts,
        ),
    )
    try:
        metrics = await trainer.run(settings.steps, _tell)
    finally:
        await gate.engine.close()
    for name in stores:
        await _follow(work / name, work / f"{name}-island", last[name])
    rewards = [None, *(step.reward for step in metrics)]
    return [
        Version(step=step, reward=reward, adapter=Wire.of(adapter), merged=Wire.of(merged))
        for step, (reward, (adapter, merged)) in enumerate(zip(rewards, reports, strict=True))
    ]


async def _follow(bulletin: Path, directory: Path, last: Checkpoint) -> None:
    """Have an agent take every version to the newest, and compare all files with `last`."""
    agent = Agent(
        AgentConfig(directory=directory, announce=False),
        BulletinReader(open_store(str(bulletin))),
    )
    await agent.open()
    try:
        while await agent.step():
            pass
        commit = agent.reader.state.newest
        if commit is None or agent.mirror.version != commit.version:
            raise AssertionError(f"the agent holds {agent.mirror.version}, not the newest")
        if digest_weights(last.layout, last.read).version() != commit.result:
            raise AssertionError("the log's digest is not that of the published weights")
        for name, _ in last.layout.files():
            published = b"".join(last.file_chunks(name))
            if (agent.mirror.directory / name).read_bytes() != published:
                raise AssertionError(f"{directory}: {name} differs from what was published")
    finally:
        await agent.close()


def _tell(step: StepMetrics) -> None:
    print(f"step {step.step}: reward {step.reward:.3f}", file=sys.stderr, flush=True)


def adapters(
    model: Annotated[str, typer.Option(help="smollm2, or tiny for a quick look.")] = "smollm2",
    rank: Annotated[int, typer.Option(min=1, help="Of the adapter, on all projections.")] = 16,
    lr: Annotated[float, typer.Option(min=0, help="AdamW's learning rate.")] = 1e-4,
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps.")] = 6,
    prompts: Annotated[int, typer.Option(min=2, max=8, help="Groups of a step.")] = 4,
    samples: Annotated[int, typer.Option(min=2, help="Rollouts of a group.")] = 4,
    max_tokens: Annotated[int, typer.Option(min=1, help="Of a rollout.")] = 12,
    save: Save = None,
    as_json: AsJson = False,
) -> None:
    """Train a LoRA once, publish it as adapters and merged, and count what followers download."""
    settings = Settings(
        model=model, rank=rank, lr=lr, steps=steps, prompts=prompts, samples=samples,
        max_tokens=max_tokens,
    )  # fmt: skip
    submission = Submission("rl adapters", asdict(settings))
    with tempfile.TemporaryDirectory(prefix="skerry-lora-") as work:
        versions = asyncio.run(measure(settings, Path(work)))
    document = submission.document({"versions": [asdict(version) for version in versions]})
    if not deliver(document, save=save, as_json=as_json):
        _say(settings, versions)


def _say(settings: Settings, versions: Sequence[Version]) -> None:
    print(
        f"{settings.model}, LoRA of rank {settings.rank} on all projections, lr {settings.lr:g}\n"
    )
    print("| step | reward | adapter | B | changed | of its full | merged | B | changed | ratio |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for version in versions:
        a, m = version.adapter, version.merged
        reward = "" if version.reward is None else f"{version.reward:.3f}"
        print(
            f"| {version.step} | {reward} | {a.kind} | {a.nbytes:,} | {_share(a)} "
            f"| {a.nbytes / a.full_bytes:.2f} | {m.kind} | {m.nbytes:,} | {_share(m)} "
            f"| {m.nbytes / a.nbytes:.2f} |"
        )
    print("\nboth runs were followed to their last version, and every file is what was published")


def _share(wire: Wire) -> str:
    return "" if wire.changed is None else f"{wire.changed / wire.elements:.2%}"
