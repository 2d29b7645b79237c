"""The extension of vLLM's workers, for `--worker-extension-cls`.

Its methods are called in every rank by `collective_rpc`.  They return what happened and never
raise: with several ranks the caller has to know of each one how it went, to put all of them back.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from skerry.codec.errors import CodecError
from skerry.inference.engine import EngineBroken, EngineError
from skerry.inference.exchange import Exchange
from skerry.inference.placement.rank import Rank
from skerry.inference.vllm.loading import parameters_of, placement_of

logger = logging.getLogger(__name__)

Answer = dict[str, Any]

_RANK = "_skerry_rank"
_BESIDE = ("stage", "read_back", "compare", "mirror_digest")


class SkerryWorker:
    """Mixed into vLLM's Worker class: all names start with `skerry`, to clash with nothing."""

    model_runner: Any  # of the worker
    model_config: Any
    vllm_config: Any
    _skerry_pool: ThreadPoolExecutor
    _skerry_work: Future[Answer]

    def skerry_begin(self, verb: str, *args: Any) -> Answer:
        """Start a method of this class, which only reads weights, beside the forward passes.

        A call from outside holds up the rank's loop; what takes long must not.
        """
        if verb not in _BESIDE:
            return {"ok": False, "broken": False, "error": f"{verb!r:.40} cannot run beside"}
        pool = getattr(self, "_skerry_pool", None)
        if pool is None:
            pool = self._skerry_pool = ThreadPoolExecutor(1, thread_name_prefix="skerry")
        self._skerry_work = pool.submit(getattr(self, f"skerry_{verb}"), *args)
        return {"ok": True}

    def skerry_poll(self) -> Answer:
        """Return what was begun last has returned, or that it still runs."""
        if not self._skerry_work.done():
            return {"ok": True, "pending": True}
        return self._skerry_work.result()

    def skerry_state(self) -> Answer:
        """Return the version of this rank, and what is known of its parameters."""

        def state() -> Answer:
            rank = self._skerry()
            derived = sorted(set(rank.placement.derived.values()))
            return {"version": rank.version, "kinds": rank.placement.kinds(), "derived": derived}

        return _answer(state)

    def skerry_load(self, directory: str, version: int) -> Answer:
        def load() -> Answer:
            rank = self._skerry()
            rank.load(Path(directory), version)
            return {"reads_mirror": rank.reads_mirror}

        return _answer(load)

    def skerry_stage(self, exchange: str, name: str) -> Answer:
        def stage() -> Answer:
            report = self._skerry().stage(Exchange(Path(exchange)).get(name))
            return dataclasses.asdict(report)

        return _answer(stage)

    def skerry_install(self, version: int) -> Answer:
        return _answer(lambda: {"scatter_s": self._skerry().install(version)})

    def skerry_undo(self, version: int) -> Answer:
        return _answer(lambda: self._skerry().undo(version))

    def skerry_settle(self) -> Answer:
        return _answer(lambda: self._skerry().settle())

    def skerry_read_back(self) -> Answer:
        return _answer(lambda: dataclasses.asdict(self._skerry().read_back()))

    def skerry_held(self) -> Answer:
        """Return, by tensor, its words, and (start, strides, shape) of the boxes of this rank."""

        def held() -> Answer:
            rank = self._skerry()
            specs = rank.placement.specs
            tensors = {
                name: (specs[name].words, [(b.start, b.strides, b.shape) for b in boxes])
                for name, boxes in rank.held().items()
            }
            return {"tensors": tensors}

        return _answer(held)

    def skerry_mirror_digest(self) -> Answer:
        return _answer(lambda: {"digest": self._skerry().mirror_digest()})

    def skerry_compare(self, directory: str) -> Answer:
        return _answer(lambda: {"different": self._skerry().compare(Path(directory))})

    def _skerry(self) -> Rank:
        return rank_of(self.model_runner.get_model(), self.vllm_config)


def rank_of(model: Any, vllm_config: Any) -> Rank:
    """Return what looks after the weights of `model`: one for all who ask.  Raises LookupError."""
    rank = getattr(model, _RANK, None)
    if not isinstance(rank, Rank):
        rank = Rank(
            placement_of(model),
            lambda: parameters_of(model),
            lambda tensors: reload_modules(model, vllm_config, tensors),
            alone=vllm_config.parallel_config.world_size == 1,
        )
        setattr(model, _RANK, rank)
    return rank


def reload_modules(
    model: Any, vllm_config: Any, tensors: Sequence[tuple[str, torch.Tensor]]
) -> None:
    """Have vLLM make the modules anew that `tensors` belong to; the others keep what they have.

    The new tensors are copied into the old storages.  Raises whatever vLLM raises, and then the
    model may have lost its parameters.
    """
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader.reload import (
        finalize_layerwise_reload,
        initialize_layerwise_reload,
    )

    with set_current_vllm_config(vllm_config), torch.device(vllm_config.device_config.device):
        initialize_layerwise_reload(model)
        model.load_weights(iter(tensors))
        finalize_layerwise_reload(model, vllm_config.model_config)


def _answer(work: Callable[[], Mapping[str, Any] | None]) -> Answer:
    try:
        return {"ok": True, **(work() or {})}
    except (EngineError, CodecError, OSError, LookupError) as error:
        logger.warning("refused: %s", error)
        return {"ok": False, "broken": isinstance(error, EngineBroken), "error": str(error)}
    except Exception as error:  # the boundary to the caller, who must hear of every rank
        logger.exception("failed")
        return {"ok": False, "broken": True, "error": repr(error)}
