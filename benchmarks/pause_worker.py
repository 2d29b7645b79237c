"""vLLM's worker with what `bench_pause` measures beside our scatter: vLLM's own ways.

Each leaves the rank believing what its weights are by then; only a comparison after it proves that.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from skerry.inference.exchange import Exchange
from skerry.inference.placement.words import TORCH_DTYPES, WORDS
from skerry.inference.vllm.worker import Answer, SkerryWorker


class PauseWorker(SkerryWorker):
    """`--worker-extension-cls` of the benchmark's engine."""

    reload_weights: Any  # of vLLM's worker
    _bench_patches: list[Any]

    def bench_reload(self, directory: str, version: int) -> Answer:
        """Reload all weights from a directory, as vLLM does it."""
        began = time.perf_counter()
        self.model_runner.reload_weights(weights_path=directory)
        seconds = time.perf_counter() - began
        self._skerry().version = version
        return {"ok": True, "inside_s": seconds}

    def bench_stage_patches(self, exchange: str, name: str) -> Answer:
        """Read a record as vLLM's own sparse patches, before the pause."""
        from vllm.model_executor.model_loader.checkpoint_weight_patch import CheckpointWeightPatch

        self._bench_patches = []
        for change in Exchange(Path(exchange)).get(name).changes:
            spec = change.spec
            size = spec.type.word
            bits = torch.from_numpy(change.new.view(f"<i{size}")).view(WORDS[size])
            self._bench_patches.append(
                CheckpointWeightPatch(
                    spec.name,
                    spec.shape,
                    TORCH_DTYPES[spec.dtype],
                    bits.view(TORCH_DTYPES[spec.dtype]),
                    torch.from_numpy(change.positions),
                )
            )
        return {"ok": True}

    def bench_apply_patches(self, version: int) -> Answer:
        """Apply them: whole tensors of NaN, with the changed elements among them."""
        from vllm.model_executor.model_loader.checkpoint_weight_patch import (
            load_checkpoint_weight_patches,
        )

        began = time.perf_counter()
        load_checkpoint_weight_patches(self.model_runner.get_model(), self._bench_patches)
        seconds = time.perf_counter() - began
        self._skerry().version = version
        return {"ok": True, "inside_s": seconds}
