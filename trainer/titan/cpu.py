"""torchtitan 0.3.0 on a CPU, to try things out: what it lacks there, and nothing else.

torchtitan is written for accelerators.  `prepare` puts in place what a CPU does not have, before
anything else of torchtitan is imported; `fit` chooses the parts of a configuration that run there.
`torchrun -m skerry.trainer.titan.cpu …` takes the arguments of `torchtitan.train`.  On an
accelerator nothing of this is wanted.
"""

from __future__ import annotations

import os
import sys
import types
from importlib.util import find_spec
from typing import Any

import torch

_KERNELS = "torchtitan.distributed.minimal_async_ep.kernels"


def prepare() -> None:
    """Make torchtitan importable, and its collectives those that gloo has.  Call it first."""
    if find_spec("triton") is None:
        # Imported at the start wherever experts are exchanged, called on GPUs alone.
        sys.modules.setdefault(_KERNELS, _Anything(_KERNELS))
    from torchtitan.tools import utils

    utils.device_type, utils.device_module = "cpu", _device()
    utils.get_local_device = lambda: torch.device("cpu")
    if not hasattr(torch.distributed, "set_timeout"):  # of later versions of torch
        torch.distributed.set_timeout = lambda timeout, group=None: None  # type: ignore[attr-defined]
    _sum_plainly()


def fit(config: Any) -> Any:
    """Change a Trainer.Config to parts that run on a CPU; return it."""
    from torchtitan.components.loss import CrossEntropyLoss
    from torchtitan.models.common.attention import ScaledDotProductAttention
    from torchtitan.models.common.config_utils import decoder_vocab_size

    for layer in config.model_spec.model.layers:  # flex attention has no backward pass on a CPU
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    vocabulary = decoder_vocab_size(config.model_spec)
    config.loss = CrossEntropyLoss.Config(global_vocab_size=vocabulary)
    config.training.disable_cuda_graphs = True
    config.comm.trace_buf_size = 0  # NCCL's flight recorder
    # `fully_shard` of torch 2.13 does not know the default one.
    config.parallelism.spmd_backend = "partial_dtensor"
    return config


def main() -> None:
    prepare()
    from torchtitan import train

    train.main()


class _Anything(types.ModuleType):
    """A module that has whatever is imported from it, as None."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


def _device() -> types.ModuleType:
    """Return `torch.cpu` with the questions that torchtitan asks of a device."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    device = types.ModuleType("torch.cpu")
    device.__dict__.update(
        set_device=lambda device: None,
        current_device=lambda: 0,
        device_count=lambda: 1,
        synchronize=lambda *args, **kwargs: None,
        empty_cache=lambda: None,
        reset_peak_memory_stats=lambda *args, **kwargs: None,
        memory_stats=lambda *args, **kwargs: {},
        get_device_name=lambda *args, **kwargs: "CPU",
        get_device_properties=lambda *args, **kwargs: types.SimpleNamespace(
            total_memory=memory, name="CPU"
        ),
    )
    return device


def _sum_plainly() -> None:
    """Have FSDP reduce by sums: it is told to divide by 1, for which gloo has no reduction."""
    from torch.distributed.fsdp import FSDPModule

    divide = FSDPModule.set_gradient_divide_factor

    def set_gradient_divide_factor(module: FSDPModule, factor: float) -> None:
        divide(module, factor)
        module.set_force_sum_reduction_for_comms(True)

    FSDPModule.set_gradient_divide_factor = set_gradient_divide_factor  # type: ignore[assignment,method-assign]


if __name__ == "__main__":
    main()
