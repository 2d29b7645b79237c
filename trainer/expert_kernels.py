"""Kernels for experts through torchtitan 0.3.0: DeepEP's dispatch, FP8 matmuls; or why not here.

What a machine lacks is found before a run starts, all of it at once, and said; nothing falls back
on its own, because a run that is silently slower is found too late.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from typing import Any, Self

import torch


class Dispatch(StrEnum):
    """How tokens travel to their experts; the values are torchtitan's names of it."""

    STANDARD = "standard"  # all-to-all of torch
    DEEPEP = "deepep"  # DeepEP 2
    HYBRIDEP = "hybridep"  # DeepEP's for NVLink domains


class Matmul(StrEnum):
    """What multiplies by the weights of experts."""

    BF16 = "bf16"
    FLOAT8 = "float8"  # torchao's, rowwise
    DEEPGEMM = "deepgemm"


# Of NVIDIA devices: what each needs at least.
_CAPABILITY = {
    Dispatch.DEEPEP: (9, 0), Dispatch.HYBRIDEP: (9, 0),
    Matmul.FLOAT8: (8, 9), Matmul.DEEPGEMM: (9, 0),
}  # fmt: skip
_PACKAGE = {
    Dispatch.DEEPEP: "deep_ep", Dispatch.HYBRIDEP: "deep_ep",
    Matmul.FLOAT8: "torchao", Matmul.DEEPGEMM: "deep_gemm",
}  # fmt: skip
_NO_PATH = "torchtitan 0.3.0 never calls DeepGEMM: its FP8 matmuls of experts are torchao's, float8"


class KernelsAbsent(RuntimeError):
    """The machine lacks what was chosen: the operator installs it, or chooses another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What decides: installed packages by their version, and the device's capability if any."""

    packages: dict[str, str]
    capability: tuple[int, int] | None

    @classmethod
    def here(cls, version: Callable[[str], str] = metadata.version) -> Self:
        packages = {}
        for name in {"torchtitan", *_PACKAGE.values()}:
            try:
                packages[name] = version(name)
            except metadata.PackageNotFoundError:
                continue
        there = torch.cuda.is_available()
        return cls(
            packages=packages, capability=torch.cuda.get_device_capability() if there else None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertKernels:
    """The choice of one run."""

    dispatch: Dispatch = Dispatch.STANDARD
    matmul: Matmul = Matmul.BF16

    def absent(self, machine: Machine) -> tuple[str, ...]:
        """Say, a reason a line, what `machine` lacks for this choice; nothing: it has all."""
        reasons = [] if "torchtitan" in machine.packages else ["torchtitan is not installed"]
        if self.matmul is Matmul.DEEPGEMM:
            reasons.append(_NO_PATH)
        for kernel in (self.dispatch, self.matmul):
            package, least = _PACKAGE.get(kernel), _CAPABILITY.get(kernel)
            if package is not None and package not in machine.packages:
                reasons.append(f"{kernel}: {package} is not installed")
            if least is not None and (machine.capability is None or machine.capability < least):
                found = "no NVIDIA device" if machine.capability is None else machine.capability
                reasons.append(f"{kernel}: expected compute capability {least}, found {found}")
        return tuple(reasons)

    def require(self, machine: Machine) -> None:
        """Raise KernelsAbsent, with every reason, unless `machine` has what was chosen."""
        reasons = self.absent(machine)
        if reasons:
            raise KernelsAbsent("; ".join(reasons))


def set_dispatch(model: Any, dispatch: Dispatch) -> int:
    """Have every sparse layer of a torchtitan model's config dispatch so; return how many do.

    What a run has fixed, such as the tokens of a rank, torchtitan fills in by itself.  Raises
    ValueError for a model without experts.
    """
    from torchtitan.models.common.config_utils import make_token_dispatcher_config

    changed = 0
    for layer in model.layers:
        if getattr(layer, "moe", None) is None:
            continue
        experts = layer.moe.routed_experts
        experts.token_dispatcher = make_token_dispatcher_config(
            num_experts=experts.token_dispatcher.num_experts,
            top_k=experts.token_dispatcher.top_k,
            comm_backend=dispatch.value,
            non_blocking_capacity_factor=1.0 if dispatch is Dispatch.HYBRIDEP else None,
            hidden_dim=model.dim,
        )
        changed += 1
    if not changed:
        raise ValueError("dispatch: the model has no experts")
    return changed
