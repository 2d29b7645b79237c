"""torchtitan's debug models, small, on the CPU, each version beside its oracle: `--module` of runs.

`torchrun -m skerry.trainer.titan.cpu --module tests.trainer.titan.configs --config llama3 …`
"""

from __future__ import annotations

import os
import shutil
import signal
from dataclasses import dataclass, fields
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.tensor import DTensor

from skerry.bulletin import stores
from skerry.publisher import Checkpoint
from skerry.publisher.directory import side_files
from skerry.trainer.served import serve
from skerry.trainer.titan import Publishing, PublishingTrainer, publishing
from skerry.trainer.titan.cpu import fit
from skerry.trainer.titan.tiny import small
from tests.bulletin.faults import FaultyStore


class OracleTrainer(PublishingTrainer):
    """Writes what each version must be to DUMP_FOLDER/oracle/STEP: the gathered state, converted
    by the adapter and cast whole.

    Rank 1 kills itself once it has uploaded its pack of step `death`.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(PublishingTrainer.Config):
        death: int = -1

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if config.death >= 0 and dist.get_rank() == 1:
            uploads = count(1)  # version 0 is full: the packs are those of steps 1, 2 and so on

            def die(verb: str, key: str) -> None:
                if verb == "size" and key.startswith("packs/") and next(uploads) == config.death:
                    os.kill(os.getpid(), signal.SIGKILL)

            store = stores.open_store(config.publishing.bulletin)
            stores.open_store = lambda url: FaultyStore(store, after=die)

    def train_step(self, data_iterator: Any) -> None:
        if self.step == 1:
            self.write_oracle(0)
        super().train_step(data_iterator)
        self.write_oracle(self.step)

    def write_oracle(self, step: int) -> None:
        gathered = {
            name: tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            for part in self.model_parts
            for name, tensor in part.state_dict().items()
        }
        if dist.get_rank() != 0:
            return
        spec, settings = self.config.model_spec, self.config.publishing
        adapter = spec.state_dict_adapter(self.model_config, None)
        checkpoint = Checkpoint.from_arrays(
            serve(settings.rule_set(), adapter.to_hf(gathered).items()),
            side_files=side_files(Path(self.config.hf_assets_path)),
        )
        target = Path(self.config.dump_folder) / "oracle" / str(step)
        shutil.rmtree(target, ignore_errors=True)  # of a run that was killed after it
        checkpoint.write_to(target)


def llama3() -> Any:
    return _of("llama3")


def qwen3() -> Any:
    return _of("qwen3")


def deepseek_v3() -> Any:
    return _of("deepseek_v3")


def _of(model: str) -> Any:
    stock = import_module(f"torchtitan.models.{model}.config_registry")
    config = small(fit(getattr(stock, f"{model}_debugmodel")()), steps=10)
    config.model_spec.model.layers = config.model_spec.model.layers[:3]  # one dense, of experts two
    for group in config.optimizer.param_groups:
        group.optimizer_kwargs["lr"] = 1e-5
    published = publishing(config, Publishing.Config())
    return OracleTrainer.Config(**{f.name: getattr(published, f.name) for f in fields(published)})
