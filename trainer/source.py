"""Where a run starts: FP32 master weights under HF names, and the side files of the checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer

from skerry.inference.models.config import LlamaConfig
from skerry.inference.models.llama import Llama
from skerry.publisher.arrays import ServedTensor
from skerry.trainer.precision import served_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceModel:
    """FP32 `weights` by HF name, and `side_files` by file name: config, tokenizer and the rest."""

    weights: Mapping[str, torch.Tensor]
    side_files: Mapping[str, bytes]

    @property
    def config(self) -> LlamaConfig:
        return LlamaConfig.from_files(self.side_files)

    def served(self) -> dict[str, ServedTensor]:
        """Return every tensor as BF16: version 0 of a run that starts here."""
        return served_weights(self.weights.items())

    def tokenizer(self) -> Tokenizer:
        return Tokenizer.from_str(self.side_files["tokenizer.json"].decode())

    def model(self) -> Llama:
        """Return a trainable model over copies of the weights."""
        return Llama(self.config, {name: w.clone() for name, w in self.weights.items()})
