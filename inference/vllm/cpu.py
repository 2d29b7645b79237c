"""vLLM's CPU backend: weights that it would repack stay as the loaders left them, or in an order
that is known.

On other platforms nothing here does anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from skerry.inference.placement.permutation import NoPermutation, Permutation, discover

PACKED = "SKERRY_VLLM_PACKED"  # set: let the backend repack, and make modules anew at each update
_EXPERTS = ("w13_weight", "w2_weight")


def keep_unpacked(model: torch.nn.Module) -> None:
    """Have this model's linear layers and heads compute with the weights that loaders write to."""
    from vllm.model_executor.layers.linear import LinearBase
    from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    for module in model.modules():
        method = getattr(module, "quant_method", None)
        if isinstance(module, LinearBase):
            module._cpu_skip_gemm_dispatch = True  # vLLM's own switch, made for one layer of MLA
        elif isinstance(method, UnquantizedEmbeddingMethod):
            method.process_weights_after_loading = _use_as_loaded


def permutations(model: torch.nn.Module) -> Mapping[str, Permutation]:
    """Return the order in which this model's experts were packed, where that is all packing did."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return {}
    from vllm._custom_ops import cpu_prepack_moe_weight

    found: dict[str, Permutation] = {}
    known: dict[tuple[tuple[int, ...], str], Permutation] = {}
    for name, module in model.named_modules():
        isa = _packed_for(module)
        if isa is None:
            continue
        for weight in _EXPERTS:
            tensor = getattr(module, weight, None)
            if tensor is None or tensor.dim() != 3 or tensor.element_size() != 2:
                continue
            key = (tuple(tensor.shape[1:]), isa)
            if key not in known:

                def pack(block: torch.Tensor, isa: str = isa) -> torch.Tensor:
                    packed: torch.Tensor = cpu_prepack_moe_weight(block.unsqueeze(0), isa)
                    return packed

                try:
                    known[key] = discover(key[0], pack)
                except NoPermutation:
                    continue  # the comparison of bits will call it derived
            found[f"{name}.{weight}"] = known[key]
    return found


def shadowed(model: torch.nn.Module) -> Mapping[str, str]:
    """Return parameters that hold the right bits while something else is computed with, and what.

    Equal bits do not tell: these are known from vLLM's own code.
    """
    found: dict[str, str] = {}
    for name, module in model.named_modules():
        linear = getattr(module, "cpu_linear", None)
        if linear is not None and linear is not torch.nn.functional.linear:
            for parameter, _ in module.named_parameters(recurse=False):
                found[f"{name}.{parameter}"] = "the backend computes with a packed copy"
        if hasattr(module, "W_UK_T") or hasattr(module, "W_UV"):
            absorbed = getattr(module, "kv_b_proj", None)
            for other, candidate in model.named_modules():
                if absorbed is not None and candidate is absorbed:
                    for parameter, _ in candidate.named_parameters(recurse=False):
                        found[f"{other}.{parameter}"] = "attention computes with an absorbed form"
    return found


def _use_as_loaded(layer: Any) -> None:
    layer.cpu_linear = torch.nn.functional.linear


def _packed_for(module: torch.nn.Module) -> str | None:
    """Return the instruction set that a layer's experts were packed for, None if they were not."""
    from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts

    kernel = getattr(getattr(module, "quant_method", None), "moe_kernel", None)
    experts = getattr(kernel, "fused_experts", None)
    if not isinstance(experts, CPUUnquantizedExperts) or experts._use_zentorch:
        return None
    return str(experts.isa)
