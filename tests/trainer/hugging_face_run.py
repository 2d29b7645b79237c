"""Runs on several ranks: `torchrun -m tests.trainer.hugging_face_run ROOT`.

DDP is Transformers' own trainer.  It has no FSDP on CPUs: there the callback's events come from
a loop of our own over a model that torch has sharded.  Rank 0 writes what each version must be, the
whole model cast, to ROOT/ddp/oracle/STEP, and to ROOT/fsdp2/oracle/STEP.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import CallbackHandler, TrainerControl, TrainerState

from skerry.trainer.hugging_face import PublishingCallback

STEPS = 3


class Gathering(TrainerCallback):  # type: ignore[misc]
    def __init__(self, root: Path) -> None:
        self.root = root

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        self.on_step_end(args, state, control, **others)

    def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        whole = {
            name: (t.full_tensor() if isinstance(t, DTensor) else t).to(torch.bfloat16)
            for name, t in others["model"].state_dict().items()
        }
        if dist.get_rank() == 0:
            self.root.mkdir(parents=True, exist_ok=True)
            save_file(whole, self.root / f"{state.global_step}.safetensors")


def train(model: Any, callbacks: list[Any], out: Path) -> None:
    arguments = TrainingArguments(
        output_dir=str(out), use_cpu=True, report_to=[], disable_tqdm=True, max_steps=STEPS,
        learning_rate=1e-3, save_strategy="no",
    )  # fmt: skip
    tokens = torch.randint(64, (32, 12))
    rows = [{"input_ids": row, "labels": row} for row in tokens]
    Trainer(model, arguments, train_dataset=rows, callbacks=callbacks).train()


def train_sharded(model: Any, callbacks: list[Any]) -> None:
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    events = CallbackHandler(callbacks, model, None, optimizer, None)
    state, control = TrainerState(), TrainerControl()
    events.on_train_begin(None, state, control)
    for step in range(1, STEPS + 1):
        tokens = torch.randint(64, (4, 12))
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        state.global_step = step
        events.on_step_end(None, state, control)
    events.on_train_end(None, state, control)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for how in ("ddp", "fsdp2"):
        root = Path(sys.argv[1]) / how
        torch.manual_seed(0)
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                num_attention_heads=4, num_key_value_heads=2,
            )
        )  # fmt: skip
        callbacks = [Gathering(root / "oracle"), PublishingCallback(str(root / "bulletin"))]
        if how == "fsdp2":
            train_sharded(model, callbacks)
        else:
            train(model, callbacks, root / "out")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
