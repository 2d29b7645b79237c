"""While vLLM loads a model: record the map, keep weights where the loaders put them, prove it.

The map is recorded on the fresh model, before its loaders run: afterwards kernels may have repacked
parameters and dropped their loaders.  What is proved is compared right after loading, while the
directory that was read is still the one that the model was made of.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from skerry.codec.errors import CodecError
from skerry.inference.models.config import UnsupportedModel
from skerry.inference.placement.checkpoint import MappedCheckpoint
from skerry.inference.placement.dry_run import Recording, record
from skerry.inference.placement.placement import Placement
from skerry.inference.vllm import cpu

logger = logging.getLogger(__name__)

_ATTRIBUTE = "_skerry_placement"


def hook_loaders() -> None:
    """Wrap vLLM's model loaders, once in a process."""
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader

    inner = BaseModelLoader.load_model
    if getattr(inner, "_skerry", False):
        return

    def load_model(
        self: Any, vllm_config: Any, model_config: Any, *args: Any, **kwargs: Any
    ) -> Any:
        transfer = vllm_config.weight_transfer_config
        if transfer is None or transfer.backend != "skerry":
            return inner(self, vllm_config, model_config, *args, **kwargs)
        return _load(self, inner, vllm_config, model_config, *args, **kwargs)

    load_model._skerry = True  # type: ignore[attr-defined]
    BaseModelLoader.load_model = load_model


def placement_of(model: torch.nn.Module) -> Placement:
    """Return what was recorded and proved of `model` when it was loaded.

    Raises LookupError, saying what to start the engine with.
    """
    placement = getattr(model, _ATTRIBUTE, None)
    if isinstance(placement, Placement):
        return placement
    raise LookupError(
        "the model's loaders were not recorded: start vLLM with "
        """--weight-transfer-config '{"backend": "skerry"}' on a directory of safetensors"""
    )


def parameters_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return every tensor that a loader may write to, by name."""
    tensors: dict[str, torch.Tensor] = dict(model.named_buffers())
    tensors.update(model.named_parameters())
    return tensors


def _load(
    loader: Any,
    inner: Callable[..., Any],
    vllm_config: Any,
    model_config: Any,
    *args: Any,
    **kw: Any,
) -> Any:
    inner_weights = loader.load_weights

    def load_weights(model: torch.nn.Module, config: Any) -> None:
        checkpoint = _open(model_config.model)
        if checkpoint is not None:
            setattr(model, _ATTRIBUTE, Placement(recording=_record(model, checkpoint)))
            if not os.environ.get(cpu.PACKED):
                cpu.keep_unpacked(model)
        inner_weights(model, config)

    loader.load_weights = load_weights
    try:
        model = inner(loader, vllm_config, model_config, *args, **kw)
    finally:
        del loader.load_weights
    if hasattr(model, _ATTRIBUTE):
        _prove(model, _open(model_config.model))
    return model


def _open(directory: str) -> MappedCheckpoint | None:
    try:
        return MappedCheckpoint.open(Path(directory))
    except (OSError, CodecError, UnsupportedModel) as error:
        logger.warning("no map of %s: %s; weights cannot be updated", directory, error)
        return None


def _record(model: torch.nn.Module, checkpoint: MappedCheckpoint) -> Recording:
    began = time.perf_counter()
    specs = list(checkpoint.specs.values())
    load: Any = model.load_weights
    try:
        recording = record(parameters_of(model), specs, load)
    except Exception as error:  # whatever a model's loaders do with tensors that have no values
        logger.warning("no map: the loaders cannot run dry: %r; every update is a reload", error)
        everything = set(checkpoint.specs)
        return Recording(
            specs=checkpoint.specs,
            computed=dict.fromkeys(parameters_of(model), f"no map: {error!r}"),
            sources=dict.fromkeys(parameters_of(model), everything),
        )
    logger.info(
        "map recorded tensors=%d boxes=%d computed=%d seconds=%.3f",
        len(specs), len(recording.boxes), len(recording.computed), time.perf_counter() - began,
    )  # fmt: skip
    return recording


def _prove(model: torch.nn.Module, checkpoint: MappedCheckpoint | None) -> None:
    began = time.perf_counter()
    placement = placement_of(model)
    placement.permutations = cpu.permutations(model)
    if checkpoint is None:
        problem = "the checkpoint was gone before it could be compared"
        placement.derived = dict.fromkeys(placement.parameters, problem)
    else:
        placement.prove(parameters_of(model), checkpoint, cpu.shadowed(model))
    logger.info("map proved %s seconds=%.3f", placement.kinds(), time.perf_counter() - began)
    for why in sorted(set(placement.derived.values())):
        names = sorted(name for name, reason in placement.derived.items() if reason == why)
        logger.warning(
            "%d parameters are made anew at each update that touches them, %s and so on: %s",
            len(names), names[0], why,
        )  # fmt: skip
