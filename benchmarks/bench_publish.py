"""What does publishing every step cost the trainer?  The same steps, with it and without, in turn.

`python -m skerry.benchmarks publish`, or `skerry bench publish`.  One process trains random FP32
layers with AdamW on the CPU and publishes BF16 to a directory, beside training, as every trainer's
integration does.  What is encoded takes cores from the training here; beside a GPU it does not.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from skerry.benchmarks.submission import Submission

if TYPE_CHECKING:
    import torch

_WIDTH = 2048
_WARM = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Medians of a step; `blocked_s` is the training thread's time in `publish`, of every step.

    `copied_s_per_gb` is the same where nothing was on its way: the copy alone, without waiting for
    versions that take longer than a step.  `last_s` is how long the last versions took after the
    last step.
    """

    weights_gb: float
    steps: int
    without_s: float
    with_s: float
    ratio: float
    blocked_s: list[float]
    blocked_s_per_gb: float
    copied_s_per_gb: float
    last_s: float


def publish(
    megabytes: Annotated[float, typer.Option(min=8, help="Of BF16 weights.")] = 256,
    steps: Annotated[int, typer.Option(min=2, help="Of each loop, in each round.")] = 8,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of both loops.")] = 3,
    tokens: Annotated[int, typer.Option(min=1, help="Of a step's batch: its length.")] = 512,
    lr: Annotated[float, typer.Option(min=0, help="AdamW's learning rate.")] = 1e-6,
    bulletin: Annotated[
        str | None, typer.Option(metavar="URL", show_default="a directory", help="Where to.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Measure what publishing every step adds to a training step."""
    submission = Submission("publish", {"rounds": rounds, "tokens": tokens, "lr": lr})
    with TemporaryDirectory() as directory:
        found = measure(bulletin or directory, megabytes, steps, rounds, tokens, lr)
    if as_json:
        print(json.dumps(submission.document(asdict(found)), indent=1))
        return
    print(
        f"{found.weights_gb:.3f} GB of BF16: a step takes {1e3 * found.without_s:.1f} ms, "
        f"{1e3 * found.with_s:.1f} ms with publishing (p50): {found.ratio:.3f} times"
    )
    print(
        f"blocked {found.blocked_s_per_gb:.3f} s per GB of weights (p50 of {found.steps}), "
        f"{found.copied_s_per_gb:.3f} s where nothing was on its way; "
        f"the last versions took {found.last_s:.2f} s more"
    )


def measure(
    bulletin: str, megabytes: float, steps: int, rounds: int, tokens: int, lr: float
) -> Found:
    """Train both loops in turn, `rounds` times."""
    from skerry.trainer.parts import Shard
    from skerry.trainer.served import BF16_RULES
    from skerry.trainer.steps import StepPublisher, StepSettings

    model, step = _training(megabytes, tokens, lr)
    weights = [(name, tensor) for name, tensor in model.named_parameters()]
    nbytes = sum(2 * tensor.numel() for _, tensor in weights)
    publisher = StepPublisher(
        StepSettings(bulletin=bulletin, writer="bench"),
        BF16_RULES,
        lambda: [Shard.of(name, tensor) for name, tensor in weights],
        {"config.json": b"{}\n"},
    )
    publisher.start(0)
    for _ in range(_WARM):
        step()
    number = 0
    blocked: list[float] = []

    def published() -> float:
        """Take a step; return how long publishing it held the training up."""
        nonlocal number
        step()
        number += 1
        return _timed(lambda: publisher.publish(number))

    without: list[float] = []
    beside: list[float] = []
    copied: list[float] = []
    last: list[float] = []
    for _ in range(rounds):
        without += [_timed(step) for _ in range(steps)]
        beside += [_timed(lambda: blocked.append(published())) for _ in range(steps)]
        last.append(_timed(publisher.flush))
        copied.append(published())
        publisher.flush()
    publisher.close()
    p50, p50_beside = float(np.median(without)), float(np.median(beside))
    return Found(
        weights_gb=nbytes / 1e9,
        steps=len(beside),
        without_s=p50,
        with_s=p50_beside,
        ratio=p50_beside / p50,
        blocked_s=blocked,
        blocked_s_per_gb=float(np.median(blocked)) / (nbytes / 1e9),
        copied_s_per_gb=float(np.median(copied)) / (nbytes / 1e9),
        last_s=float(np.median(last)),
    )


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _training(
    megabytes: float, tokens: int, lr: float
) -> tuple[torch.nn.Module, Callable[[], None]]:
    """Return square layers of so many bytes in BF16, and what trains them for a step."""
    import torch

    torch.manual_seed(0)
    layers = max(1, round(megabytes * 1e6 / (2 * _WIDTH * _WIDTH)))
    model = torch.nn.Sequential(
        *(torch.nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(layers))
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.randn(tokens, _WIDTH)).square().mean().backward()
        optimizer.step()

    return model, step
