"""A trainer over several ranks: FSDP2 over gloo, with an expert of each rank's own.

`torchrun -m tests.trainer.sharded_trainer ROOT LAST DEATH` trains from its checkpoint, or step 0,
up to step LAST and publishes every step.  Rank 0 writes what the version must be, the gathered
state cast whole, to ROOT/oracle/STEP.  At step DEATH rank 1 kills itself when its pack is uploaded,
before anybody hears of it.  Without a DEATH (-1) versions are published beside training.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from skerry.bulletin.stores import open_store
from skerry.publisher import Checkpoint, PublisherConfig
from skerry.publisher.sharding import ShardedPublisher, TensorPart, beside_training
from skerry.trainer.fabric import TorchFabric
from skerry.trainer.parts import Shard, serve_shards
from skerry.trainer.served import Form, Rule, RuleSet, serve
from tests.bulletin.faults import FaultyStore

SIDE_FILES = {"config.json": b"{}\n"}
RULES = RuleSet(
    rules=(
        Rule(pattern="router.weight", form=Form.KEEP),
        Rule(pattern="wide.weight", form=Form.FP8_BLOCK),
        Rule(pattern="*", form=Form.BF16),
    )
)
CONFIG = PublisherConfig(anchor_versions=None, anchor_ratio=None, threads=1)


class Model(torch.nn.Module):
    """Rows that two ranks cannot share evenly, one block row across both, one frozen tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = torch.nn.Linear(130, 201)  # rows 0-100 and 101-200: both in blocks 0 and 1
        self.router = torch.nn.Linear(201, 5, bias=False)
        self.frozen = torch.nn.Linear(5, 7)
        self.scale = torch.nn.Parameter(torch.ones(1))  # rank 0 has it all
        self.frozen.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.router(torch.relu(self.wide(x))) * self.scale
        return self.frozen(hidden).square().mean()  # type: ignore[no-any-return]


class Trainer:
    """The model of one rank, its own expert, and their optimizer."""

    def __init__(self, root: Path) -> None:
        torch.manual_seed(0)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.model = Model()
        fully_shard(self.model, mesh=init_device_mesh("cpu", (self.size,)))
        self.expert = torch.nn.Parameter(torch.randn(3, 10) + self.rank)
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW([*trained, self.expert], lr=1e-3, foreach=False)
        self.path = root / f"checkpoint-{self.rank}.pt"

    def named(self) -> Mapping[str, torch.Tensor]:
        return dict(self.model.named_parameters())

    def step(self, number: int) -> None:
        torch.manual_seed(100 * number + self.rank)
        (self.model(torch.randn(4, 130)) + self.expert.square().mean()).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def shards(self) -> list[Shard]:
        shards = [Shard.of(name, tensor) for name, tensor in self.named().items()]
        for rank in range(self.size):
            values = self.expert.detach() if rank == self.rank else torch.empty(0, 10)
            shards.append(
                Shard(name=f"experts.{rank}.weight", shape=(3, 10), offset=(0, 0), values=values)
            )
        return shards

    def write_oracle(self, directory: Path) -> None:
        gathered = {
            name: tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            for name, tensor in self.named().items()
        }
        experts = [torch.empty(3, 10) for _ in range(self.size)]
        dist.all_gather(experts, self.expert.detach())
        gathered |= {f"experts.{rank}.weight": expert for rank, expert in enumerate(experts)}
        if self.rank == 0:
            shutil.rmtree(directory, ignore_errors=True)
            served = serve(RULES, gathered.items())
            Checkpoint.from_arrays(served, side_files=SIDE_FILES).write_to(directory)

    def save(self, step: int) -> None:
        local = {n: t.to_local() if isinstance(t, DTensor) else t for n, t in self.named().items()}
        content = {"step": step, "model": local, "expert": self.expert.detach()}
        torch.save(content, self.path.with_suffix(".new"))
        self.path.with_suffix(".new").replace(self.path)

    @torch.no_grad()
    def load(self) -> int | None:
        if not self.path.exists():
            return None
        content = torch.load(self.path)
        for name, tensor in self.named().items():
            local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
            local.copy_(content["model"][name])
        self.expert.copy_(content["expert"])
        step: int = content["step"]
        return step


def main() -> None:
    root, last, death = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    fabric, trainer = TorchFabric.of_all(), Trainer(root)
    now = [-1]

    def die(verb: str, key: str) -> None:
        if fabric.rank == 1 and now[0] == death and verb == "size" and key.startswith("packs/"):
            os.kill(os.getpid(), signal.SIGKILL)

    def parts() -> list[TensorPart]:
        return serve_shards(RULES, trainer.shards(), fabric)

    resumed = trainer.load()
    store = FaultyStore(open_store(str(root / "bulletin")), after=die)
    publisher = ShardedPublisher.open(
        fabric, store, parts(), side_files=SIDE_FILES, recipe=RULES.recipe(), config=CONFIG
    )
    if resumed is not None and not publisher.resume(resumed, parts()):
        raise SystemExit("the checkpoint has other bits than its version")
    beside = None
    if death < 0:
        front = TorchFabric.of_all()
        cast = partial(serve_shards, RULES, fabric=front)
        beside = beside_training(publisher, front, lambda: cast(trainer.shards()))
    for number in range(0 if resumed is None else resumed + 1, last + 1):
        now[0] = number
        if number:
            trainer.step(number)
        trainer.write_oracle(root / "oracle" / str(number))
        if beside is not None:
            beside.publish(number)
            continue
        publisher.publish(parts(), step=number)
        trainer.save(number)
    if beside is not None:
        beside.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
