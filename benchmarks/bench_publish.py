"""What does publishing every step cost the trainer?  The same steps, with it and without, in turn.

`python -m skerry.benchmarks publish`, or `skerry bench publish`.  One process trains random FP32
layers with AdamW on the CPU and publishes BF16 to a directory, beside training, as every trainer's
integration does.  Two costs are told apart: the training thread is held up in `publish`, and the
step itself is slower while a version is encoded on the processors that it computes with.  Beside a
GPU it computes elsewhere, and only the first is left.
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
from skerry.bulletin.reader import BulletinReader
from skerry.bulletin.stores import open_store

if TYPE_CHECKING:
    import torch

_WIDTH = 2048
_WARM = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Seconds, medians over steps: `without_s` of a step alone, `with_s` of a step and `publish`.

    `with_s` in its parts: `beside_s` of the step itself, `blocked_s` in `publish`, given for every
    step.  `overlap` is how much slower the step itself is, `ratio` the whole of it.
    `copied_s_per_gb` is what is blocked where nothing was on its way: the copy alone, without
    waiting for versions that take longer than a step.  `last_s` is how long the last versions took
    after the last step; `changed` is the share of the weights that a step changes.
    """

    weights_gb: float
    steps: int
    changed: float
    without_s: float
    with_s: float
    ratio: float
    beside_s: float
    overlap: float
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
        f"{found.weights_gb:.3f} GB of BF16, of which a step changes {100 * found.changed:.2f} %: "
        f"{found.without_s:.3f} s a step, {found.with_s:.3f} s with publishing (p50): "
        f"{found.ratio:.3f} times"
    )
    print(
        f"the step itself takes {found.overlap:.3f} times as long beside a version on its way; "
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
    beside: list[float] = []
    blocked: list[float] = []

    def publish_next() -> None:
        nonlocal number
        number += 1
        publisher.publish(number)

    without: list[float] = []
    copied: list[float] = []
    last: list[float] = []
    for _ in range(rounds):
        without += [_timed(step) for _ in range(steps)]
        step()
        copied.append(_timed(publish_next))
        for _ in range(steps):
            beside.append(_timed(step))
            blocked.append(_timed(publish_next))
        last.append(_timed(publisher.flush))
    publisher.close()
    both = [slower + held for slower, held in zip(beside, blocked, strict=True)]
    p50, p50_beside, p50_both = (float(np.median(x)) for x in (without, beside, both))
    return Found(
        weights_gb=nbytes / 1e9,
        steps=len(beside),
        changed=_changed(bulletin),
        without_s=p50,
        with_s=p50_both,
        ratio=p50_both / p50,
        beside_s=p50_beside,
        overlap=p50_beside / p50,
        blocked_s=blocked,
        blocked_s_per_gb=float(np.median(blocked)) / (nbytes / 1e9),
        copied_s_per_gb=float(np.median(copied)) / (nbytes / 1e9),
        last_s=float(np.median(last)),
    )


def _changed(bulletin: str) -> float:
    """Return the share of the weights that the newest step changed."""
    reader = BulletinReader(open_store(bulletin))
    reader.refresh()
    newest = reader.state.newest
    assert newest is not None
    assert newest.changed is not None
    return newest.changed / newest.elements


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _training(
    megabytes: float, tokens: int, lr: float
) -> tuple[torch.nn.Module, Callable[[], None]]:
    """Return square layers of so many bytes in BF16, and what trains them for a step."""
    import torch

    class Layer(torch.nn.Module):
        """Keeps magnitudes as they are, however many there are of it: gradients do not vanish."""

        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(_WIDTH, _WIDTH, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            update: torch.Tensor = self.linear(torch.nn.functional.layer_norm(x, (_WIDTH,)))
            return x + update

    torch.manual_seed(0)
    layers = max(1, round(megabytes * 1e6 / (2 * _WIDTH * _WIDTH)))
    model = torch.nn.Sequential(*(Layer() for _ in range(layers)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, fused=True)

    def step() -> None:
        optimizer.zero_grad()
        wanted = torch.randn(tokens, _WIDTH)
        loss = torch.nn.functional.mse_loss(model(torch.randn(tokens, _WIDTH)), wanted)
        torch.autograd.backward(loss)
        optimizer.step()

    return model, step
