"""Low-rank adapters: trained beside frozen weights, served as adapters or merged.

The adapter's tensors have the names and the layout of PEFT.  A merged weight is W + scale B A in
FP32, cast once, here: whoever merged again elsewhere would get other bits, so merged weights travel
as patches and nobody merges them on the way.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from torch import Tensor, nn

from skerry.inference.models.linear import Linear
from skerry.inference.models.llama import Llama
from skerry.publisher.adapter import CONFIG_FILE, AdapterBase
from skerry.publisher.arrays import ServedTensor
from skerry.publisher.checkpoint import Checkpoint
from skerry.trainer.precision import served_weights

_PREFIX = "base_model.model."  # PEFT's, before the name of the module
STEM = "adapter_model"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraConfig:
    """The shape of an adapter: which projections it is for, by the last part of their names."""

    rank: int = 8
    alpha: int = 16
    targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj")

    def __post_init__(self) -> None:
        if self.rank < 1 or self.alpha < 1 or not self.targets:
            raise ValueError(f"rank, alpha and targets: expected at least 1 of each: {self}")


class LoraLinear(nn.Module):
    """A frozen product, and beside it a low-rank one that is trained."""

    def __init__(self, frozen: Linear, config: LoraConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.weight = frozen.weight.requires_grad_(False)
        outputs, inputs = self.weight.shape
        self._scale = config.alpha / config.rank
        # As in PEFT: A uniform as a linear layer's weight is, B zero, so that it starts as nothing.
        bound = 1 / math.sqrt(inputs)
        a = torch.empty(config.rank, inputs).uniform_(-bound, bound, generator=generator)
        self.lora_A = nn.Parameter(a.to(self.weight.device))
        self.lora_B = nn.Parameter(torch.zeros(outputs, config.rank, device=self.weight.device))

    def forward(self, x: Tensor) -> Tensor:
        low = F.linear(F.linear(x, self.lora_A), self.lora_B)
        return F.linear(x, self.weight) + self._scale * low

    @torch.no_grad()
    def merged(self) -> Tensor:
        """Return W + scale B A, FP32, shape [outputs, inputs]."""
        return torch.addmm(self.weight, self.lora_B, self.lora_A, alpha=self._scale)


def add_lora(model: Llama, config: LoraConfig, *, seed: int = 0) -> Llama:
    """Freeze `model` and give its targets adapters, in place.

    Raises ValueError for a target that the model does not have.
    """
    generator = torch.Generator().manual_seed(seed)
    model.requires_grad_(False)
    found = set()
    for name, module in list(model.named_modules()):
        part = name.rpartition(".")[2]
        if part in config.targets and isinstance(module, Linear):
            model.set_submodule(name, LoraLinear(module, config, generator))
            found.add(part)
    missing = sorted(set(config.targets) - found)
    if missing:
        raise ValueError(f"targets: the model has no {', '.join(missing)}")
    return model


def merged_weights(model: Llama) -> Iterator[tuple[str, Tensor]]:
    """Yield the model's tensors by HF name, FP32, adapters merged in: a checkpoint's."""
    adapted = {
        f"{name}.": module
        for name, module in model.named_modules()
        if isinstance(module, LoraLinear)
    }
    for name, parameter in model.named_parameters():
        prefix, last = name[: name.rfind(".") + 1], name.rpartition(".")[2]
        if prefix not in adapted:
            yield name, parameter
        elif last == "weight":
            yield name, adapted[prefix].merged()


def adapter_weights(model: Llama) -> dict[str, ServedTensor]:
    """Return the adapters' tensors by PEFT's names, BF16."""
    return served_weights(
        (f"{_PREFIX}{name}.weight", parameter)
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    )


def adapter_checkpoint(model: Llama, config: LoraConfig, base: AdapterBase) -> Checkpoint:
    """Return the adapters as PEFT's files, ready to be published; the recipe names `base`."""
    described = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": None,  # the recipe names it, by digest
        "r": config.rank,
        "lora_alpha": config.alpha,
        "target_modules": list(config.targets),
        "lora_dropout": 0.0,
        "bias": "none",
        "inference_mode": True,
    }
    return Checkpoint.from_arrays(
        adapter_weights(model),
        side_files={CONFIG_FILE: (json.dumps(described, indent=2) + "\n").encode()},
        recipe=base.recipe(),
        stem=STEM,
    )
