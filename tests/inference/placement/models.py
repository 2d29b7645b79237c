"""A small model whose loaders do what those of real engines do, and checkpoints for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch

from skerry.inference.engine import WeightUpdate
from skerry.inference.placement.checkpoint import MappedCheckpoint
from skerry.inference.placement.dry_run import record
from skerry.inference.placement.permutation import Permutation
from skerry.inference.placement.placement import Placement
from skerry.inference.placement.rank import Rank
from tests.inference.checkpoints import read_checkpoint, update_between, write_checkpoint

ROWS, COLUMNS = 6, 8
_SHAPES = {
    "q.weight": ("BF16", (ROWS, COLUMNS)),
    "k.weight": ("BF16", (ROWS, COLUMNS)),
    "down.weight": ("BF16", (COLUMNS, ROWS)),
    "packed.weight": ("BF16", (2, COLUMNS)),
    "scaled.weight": ("BF16", (4,)),
    "scaled.scale": ("F32", (1,)),
    "router.bias": ("F32", (5,)),
    "unread.weight": ("BF16", (3,)),
}


class Model(torch.nn.Module):
    """Rank `rank` of `ranks`: fused rows, a sharded column, a permuted and a derived parameter."""

    def __init__(self, rank: int = 0, ranks: int = 1) -> None:
        super().__init__()
        self._rank, self._ranks = rank, ranks
        self.qk = _Module(2 * ROWS // ranks, COLUMNS)
        self.down = _Module(COLUMNS, ROWS // ranks)
        self.packed = _Module(2, COLUMNS)
        self.scaled = _Module(4)
        self.router = _Module(5, dtype=torch.float32)
        self.reloads = 0

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        scale: torch.Tensor | None = None
        scaled: torch.Tensor | None = None
        rows, columns = ROWS // self._ranks, ROWS // self._ranks
        for name, tensor in weights:
            if name in ("q.weight", "k.weight"):
                at = rows * (name == "k.weight")
                part = tensor.narrow(0, self._rank * rows, rows)
                self.qk.weight.data.narrow(0, at, rows).copy_(part)
            elif name == "down.weight":
                part = tensor.narrow(1, self._rank * columns, columns)
                self.down.weight.data.copy_(part)
            elif name == "packed.weight":
                self.packed.weight.data.copy_(tensor)
            elif name == "router.bias":
                self.router.weight.data.copy_(tensor)
            elif name == "scaled.weight":
                scaled = tensor
            elif name == "scaled.scale":
                scale = tensor
        if scaled is not None and scale is not None:
            self.scaled.weight.data.copy_(scaled * scale)

    def process(self) -> None:
        """What a backend does after loading: it turns a weight round."""
        self.packed.weight.data.copy_(self.packed.weight.data.flip(1))

    def reload(self, tensors: Sequence[tuple[str, torch.Tensor]]) -> None:
        self.reloads += 1
        self.load_weights(tensors)


class _Module(torch.nn.Module):
    def __init__(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(shape, dtype=dtype), requires_grad=False)


def write_version(directory: Path, seed: int) -> Path:
    """Write version `seed`: all bits at random, NaNs and signed zeros among them."""
    random = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, (dtype, shape) in _SHAPES.items():
        nbytes = torch.Size(shape).numel() * (2 if dtype == "BF16" else 4)
        data = torch.randint(256, (nbytes,), generator=random, dtype=torch.uint8).numpy().tobytes()
        if name == "scaled.scale":
            data = torch.tensor([2.0 ** (seed % 3)]).numpy().tobytes()
        tensors[name] = (dtype, shape, data)
    return write_checkpoint(directory, tensors)


def update(root: Path, base: int, version: int) -> WeightUpdate:
    old, new = (read_checkpoint(version_path(root, v)) for v in (base, version))
    return update_between(base, old, version, new)


def version_path(root: Path, version: int) -> Path:
    path = root / str(version)
    return path if path.exists() else write_version(path, version)


def make_rank(root: Path, *, rank: int = 0, ranks: int = 1) -> tuple[Model, Rank]:
    """Return a model as an engine has it after loading version 0, and what looks after it."""
    model = Model(rank, ranks)
    checkpoint = MappedCheckpoint.open(version_path(root, 0))
    recording = record(parameters(model), list(checkpoint.specs.values()), model.load_weights)
    model.load_weights((name, checkpoint.copy(name)) for name in checkpoint.specs)
    model.process()
    block = torch.arange(COLUMNS - 1, -1, -1)
    placement = Placement(recording=recording, permutations={"packed.weight": Permutation(block)})
    placement.prove(parameters(model), checkpoint, {})
    return model, Rank(placement, lambda: parameters(model), model.reload, alone=ranks == 1)


def parameters(model: Model) -> Mapping[str, torch.Tensor]:
    return dict(model.named_parameters())
