"""What a machine lacks for the kernels of experts is said, all of it, before a run starts."""

from __future__ import annotations

import importlib.util
import sys
import types
from importlib import metadata

import pytest

from skerry.trainer.expert_kernels import (
    Dispatch,
    ExpertKernels,
    KernelsAbsent,
    Machine,
    Matmul,
    set_dispatch,
)

ALL = {"torchtitan": "0.3.0", "deep_ep": "2.0.0", "torchao": "0.15", "deep_gemm": "2.1"}
HOPPER = Machine(packages=ALL, capability=(9, 0))
BARE = Machine(packages={}, capability=None)


def test_nothing_is_lacking_where_everything_is_there() -> None:
    for dispatch in Dispatch:
        for matmul in (Matmul.BF16, Matmul.FLOAT8):
            ExpertKernels(dispatch=dispatch, matmul=matmul).require(HOPPER)


def test_every_reason_is_said_at_once() -> None:
    chosen = ExpertKernels(dispatch=Dispatch.DEEPEP, matmul=Matmul.FLOAT8)
    with pytest.raises(KernelsAbsent) as refused:
        chosen.require(BARE)
    for reason in (
        "torchtitan is not installed",
        "deepep: deep_ep is not installed",
        "deepep: expected compute capability (9, 0), found no NVIDIA device",
        "float8: torchao is not installed",
    ):
        assert reason in str(refused.value)


def test_an_older_device_is_named_with_what_it_has() -> None:
    ampere = Machine(packages=ALL, capability=(8, 0))
    (reason,) = ExpertKernels(dispatch=Dispatch.DEEPEP).absent(ampere)
    assert reason == "deepep: expected compute capability (9, 0), found (8, 0)"
    assert ExpertKernels().absent(ampere) == ()


def test_deepgemm_has_no_path_in_torchtitan_whatever_the_machine_has() -> None:
    (reason,) = ExpertKernels(matmul=Matmul.DEEPGEMM).absent(HOPPER)
    assert "never calls DeepGEMM" in reason


def test_this_machine_is_looked_at_and_not_assumed() -> None:
    def version(name: str) -> str:
        if name == "deep_ep":
            raise metadata.PackageNotFoundError(name)
        return "1"

    found = Machine.here(version)
    assert "deep_ep" not in found.packages
    assert found.packages["torchtitan"] == "1"


@pytest.mark.skipif(
    importlib.util.find_spec("torchtitan") is None, reason="torchtitan is not installed here"
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # what torchtitan imports sets off
@pytest.mark.parametrize("dispatch", Dispatch)
def test_every_sparse_layer_of_a_torchtitan_model_dispatches_as_it_is_told(
    dispatch: Dispatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    if importlib.util.find_spec("triton") is None:  # imported there, and called on GPUs alone
        name = "torchtitan.distributed.minimal_async_ep.kernels"
        kernels = types.ModuleType(name)
        kernels.__getattr__ = lambda _: None  # type: ignore[method-assign]
        monkeypatch.setitem(sys.modules, name, kernels)
    from torchtitan.models import deepseek_v3, llama3

    model = deepseek_v3.model_registry("debugmodel").model
    sparse = [layer for layer in model.layers if layer.moe is not None]
    assert set_dispatch(model, dispatch) == len(sparse) > 0
    if dispatch is not Dispatch.HYBRIDEP:  # whose capacity is a run's own choice
        own = deepseek_v3.model_registry("debugmodel", moe_comm_backend=dispatch.value).model
        made = [layer.moe.routed_experts.token_dispatcher for layer in sparse]
        theirs = [
            layer.moe.routed_experts.token_dispatcher
            for layer in own.layers
            if layer.moe is not None
        ]
        assert list(map(repr, made)) == list(map(repr, theirs))
    with pytest.raises(ValueError, match="no experts"):
        set_dispatch(llama3.model_registry("debugmodel").model, dispatch)
