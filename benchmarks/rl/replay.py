"""How far are trainer and engine apart on a sparse model, with and without router replay?

`python -m skerry.benchmarks rl replay`, or `skerry bench rl replay`.  A small random Mixtral learns
from its own rollouts; its engine serves BF16, its trainer computes in FP32.  Every step's rollouts
are scored twice before they are learned from, with the trainer's own choice of experts and with the
engine's, and their distances from the log-probabilities that came with them are compared.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Annotated

import torch
import typer

from skerry.benchmarks.engine_gate import EngineGate
from skerry.benchmarks.options import AsJson, Save
from skerry.benchmarks.rl.statistics import MAX_SEEDS, Interval, interval
from skerry.benchmarks.submission import Submission, deliver
from skerry.inference.models.llama import Llama
from skerry.inference.models.moe import Recorder
from skerry.inference.routed import decode_routed
from skerry.publisher import Checkpoint
from skerry.trainer.precision import served_weights
from skerry.trainer.prompts import QUESTIONS
from skerry.trainer.rl.grpo import LetterReward, group_advantages
from skerry.trainer.rl.learner import Learner, LearnerConfig
from skerry.trainer.rl.rollouts import Rollout, Sampling, collect, whole_groups
from skerry.trainer.rl.tally import LagStats, merged, stats_by_lag
from skerry.trainer.source import SourceModel
from skerry.trainer.tiny import tiny_moe

_DIM = 64
_WAYS = ("own", "replay")


@dataclass(frozen=True, slots=True, kw_only=True)
class Distance:
    """Nats a token between what the engine sampled with and what the trainer computes."""

    kl: float  # KL(engine || trainer), estimated by the mean of ratio - 1 - log ratio
    apart: float  # mean |log ratio|
    worst: float  # largest |log ratio|


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One seed at one lag; `rerouted` is the share of choices that the trainer made otherwise."""

    seed: int
    lag: int
    tokens: int
    rerouted: float
    own: Distance
    replay: Distance


class _Compared:
    """Sums over the steps of one run, both ways."""

    def __init__(self) -> None:
        self._sums: dict[str, list[dict[int, LagStats]]] = {way: [] for way in _WAYS}
        self._worst = dict.fromkeys(_WAYS, 0.0)
        self._rerouted: list[float] = []

    @torch.no_grad()
    def add(self, learner: Learner, made: Sequence[Rollout]) -> None:
        """Score a step's rollouts, before they are learned from."""
        behaviour = torch.tensor([p for rollout in made for p in rollout.logprobs])
        for way in _WAYS:
            log_ratio = learner.logprobs(made, replay=way == "replay") - behaviour
            nothing = torch.zeros_like(log_ratio, dtype=torch.bool)
            self._sums[way].append(stats_by_lag([0] * len(log_ratio), log_ratio, nothing))
            self._worst[way] = max(self._worst[way], log_ratio.abs().max().item())
        self._rerouted.append(_rerouted(learner.model, made))

    def found(self, seed: int, lag: int) -> Found:
        own, again = (self._distance(way) for way in _WAYS)
        return Found(
            seed=seed,
            lag=lag,
            tokens=merged(self._sums["own"])[0].tokens,
            rerouted=mean(self._rerouted),
            own=own,
            replay=again,
        )

    def _distance(self, way: str) -> Distance:
        stats = merged(self._sums[way])[0]
        return Distance(
            kl=stats.kl / stats.tokens, apart=stats.apart / stats.tokens, worst=self._worst[way]
        )


def _rerouted(model: Llama, made: Sequence[Rollout]) -> float:
    """Return the share of (position, layer) that the trainer alone sends to other experts."""
    config = model.config
    other = total = 0
    for rollout in made:
        text = [*rollout.prompt, *rollout.tokens[:-1]]
        recorder = Recorder(config.experts_per_token)
        model.hidden(torch.tensor([text]), torch.arange(len(text)), choose=recorder)
        shape = (len(text), config.layers, config.experts_per_token)
        assert rollout.routed_experts is not None
        sent = decode_routed(rollout.routed_experts, shape=shape, count=config.experts)
        engine = torch.from_numpy(sent.astype("i8")).sort(dim=-1).values
        own = recorder.chosen()[0].sort(dim=-1).values
        other += int((engine != own).any(dim=-1).sum())
        total += engine.shape[0] * engine.shape[1]
    return other / total


async def measure(source: SourceModel, *, seed: int, lag: int, steps: int, lr: float) -> Found:
    """Learn with replay for `steps`, from rollouts of the version `lag` steps behind."""
    learner = Learner(source.model(), LearnerConfig(lr=lr, bf16=False, replay=True))
    tokenizer = source.tokenizer()
    reward = LetterReward(tokenizer)
    prompts = [tuple(tokenizer.encode(question).ids) for question in QUESTIONS[:4]]
    sampling = Sampling(samples=8, max_tokens=16, seed=seed, routed_experts=True)
    asks = whole_groups(prompts, sampling.samples)
    compared, waiting = _Compared(), deque([source.served()])
    with tempfile.TemporaryDirectory(prefix="skerry-moe-") as name:
        path = Path(name) / "0"
        Checkpoint.from_arrays(waiting[0], side_files=source.side_files).write_to(path)
        gate = await EngineGate.open(path, waiting.popleft())
        try:
            for step in range(steps):
                batch = await collect([gate], asks, sampling, accepted="0..", step=step)
                made = batch.rollouts
                compared.add(learner, made)
                rewards = [reward(rollout.tokens) for rollout in made]
                groups = [rollout.group for rollout in made]
                await asyncio.to_thread(learner.update, made, group_advantages(rewards, groups))
                waiting.append(served_weights(learner.model.named_parameters()))
                if len(waiting) > lag:
                    await gate.install(waiting.popleft())
        finally:
            await gate.engine.close()
    return compared.found(seed, lag)


def replay(
    seeds: Annotated[int, typer.Option(min=2, max=MAX_SEEDS, help="Of weights and sampling.")] = 3,
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps of a run.")] = 8,
    lr: Annotated[float, typer.Option(min=0, help="AdamW's learning rate.")] = 1e-4,
    layers: Annotated[int, typer.Option(min=1)] = 4,
    experts: Annotated[int, typer.Option(min=2, help="Of which a token gets two.")] = 16,
    save: Save = None,
    as_json: AsJson = False,
) -> None:
    """Compare trainer and engine on a sparse model, with and without router replay."""
    settings = {"seeds": seeds, "steps": steps, "lr": lr, "layers": layers, "experts": experts}
    submission = Submission("rl replay", settings)
    torch.set_num_threads(1)  # a small model would wait for its threads, and for little else
    found = []
    for lag in (0, 1):
        for seed in range(seeds):
            source = tiny_moe(seed, layers=layers, dim=_DIM, experts=experts, std=1 / _DIM**0.5)
            run = measure(source, seed=seed, lag=lag, steps=steps, lr=lr)
            found.append(asyncio.run(run))
    document = submission.document({"runs": [asdict(one) for one in found]})
    if deliver(document, save=save, as_json=as_json):
        return
    print(f"{layers} layers, 2 of {experts} experts, lr {lr:g}, {steps} steps; nats a token\n")
    print("| lag | seed | tokens | rerouted | KL, own | KL, replay | of it | apart | replay |")
    print("|---|---|---|---|---|---|---|---|---|")
    for one in found:
        print(
            f"| {one.lag} | {one.seed} | {one.tokens} | {one.rerouted:.2%} | {one.own.kl:.2e} "
            f"| {one.replay.kl:.2e} | {one.replay.kl / one.own.kl:.3f} "
            f"| {one.own.apart:.4f} | {one.replay.apart:.4f} |"
        )
    for lag in (0, 1):
        print(f"\nKL at lag {lag}, own less replay: {_gain(found, lag)}")


def _gain(found: Sequence[Found], lag: int) -> Interval:
    return interval([one.own.kl - one.replay.kl for one in found if one.lag == lag])
