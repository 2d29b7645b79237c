"""Successive checkpoints in a directory: each a subdirectory with safetensors files.

They are taken in the order of the last number in their names, which is the step; `trace.json`, if a
trace was recorded here, says the learning rate.  Checkpoints in FP32 are rounded to BF16 first, as
for serving.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from skerry.benchmarks.deltas.states import Precision, Run, State, Weights
from skerry.benchmarks.trace import RECORD
from skerry.codec.layout import Layout
from skerry.publisher import Checkpoint
from skerry.publisher.arrays import ServedTensor
from skerry.trainer.precision import bf16_bits

_NUMBER = re.compile(r"\d+")


def run_of(root: Path) -> Run:
    """Return the run whose checkpoints lie below `root`.  Raises ValueError for fewer than two."""
    found = sorted((path for path in root.iterdir() if any(path.glob("*.safetensors"))), key=_order)
    if len(found) < 2:
        raise ValueError(f"{root}: expected two checkpoint directories or more, found {len(found)}")
    recipe = _recipe(root)
    lr = None if recipe is None else float(recipe["lr"])
    stored = dominant(Checkpoint.scan(found[0]).layout)
    cast = stored in ("F32", "BF16")
    return Run(
        source="checkpoints" if recipe is None else "trace",
        subject=root.name if recipe is None else f"{recipe['model']} GRPO, {recipe['start']}",
        states=_states(found, lr, round_them=stored == "F32"),
        measured=frozenset({_steps(found)[-1]}),
        precisions=(Precision.BF16, Precision.FP8) if cast else (Precision.STORED,),
    )


def dominant(layout: Layout) -> str:
    """Return the dtype that most bytes have."""
    sizes: Counter[str] = Counter()
    for spec in layout.tensors:
        sizes[spec.dtype] += spec.nbytes
    return max(sizes, key=lambda dtype: sizes[dtype])


def _states(paths: Sequence[Path], lr: float | None, *, round_them: bool) -> Iterator[State]:
    for step, path in zip(_steps(paths), paths, strict=True):
        yield State(step=step, lr=lr, weights=_read(path, round_them=round_them))


def _steps(paths: Sequence[Path]) -> list[int]:
    """Return the numbers in the names, or else 0, 1 and so on."""
    named = [_order(path)[0] for path in paths]
    return named if len(set(named)) == len(named) and named[0] >= 0 else list(range(len(paths)))


def _read(path: Path, *, round_them: bool) -> Weights:
    checkpoint = Checkpoint.scan(path)
    weights = {}
    for spec in checkpoint.layout.tensors:
        data = checkpoint.read(spec)
        if round_them and spec.dtype == "F32":
            rounded = bf16_bits(torch.from_numpy(data.copy()).view(torch.float32))
            weights[spec.name] = ServedTensor(dtype="BF16", shape=spec.shape, data=rounded)
        else:
            weights[spec.name] = ServedTensor(dtype=spec.dtype, shape=spec.shape, data=data.copy())
    return weights


def _recipe(root: Path) -> dict[str, Any] | None:
    try:
        recipe: dict[str, Any] = json.loads((root / RECORD).read_text())["recipe"]
    except FileNotFoundError:
        return None
    return recipe


def _order(path: Path) -> tuple[int, str]:
    numbers = _NUMBER.findall(path.name)
    return (int(numbers[-1]) if numbers else -1, path.name)
