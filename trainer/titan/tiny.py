"""Small runs of torchtitan without a data set or a tokenizer: for demos, benchmarks and tests."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.components.tokenizer import BaseTokenizer


class RandomTokens(BaseDataLoader):  # type: ignore[misc]
    """Batches of random tokens; a run that goes on from a checkpoint gets those that follow."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):  # type: ignore[misc]
        vocabulary: int
        seed: int = 0

    def __init__(
        self, config: Config, *, dp_rank: int, seq_len: int, local_batch_size: int, **others: Any
    ) -> None:
        self._config = config
        self._shape = local_batch_size, seq_len + 1
        self._rank = dp_rank
        self._number = 0

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        while True:
            seed = (self._config.seed * 1_000_003 + self._rank) * 1_000_003 + self._number
            random = torch.Generator().manual_seed(seed)
            self._number += 1
            tokens = torch.randint(self._config.vocabulary, self._shape, generator=random)
            yield {"input": tokens[:, :-1].contiguous()}, tokens[:, 1:].contiguous()

    def state_dict(self) -> dict[str, Any]:
        return {f"number_{self._rank}": self._number}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._number = state_dict[f"number_{self._rank}"]


class NoTokenizer(BaseTokenizer):  # type: ignore[misc]
    """Stands where a run has its tokenizer."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):  # type: ignore[misc]
        pass

    def __init__(self, config: Config, **others: Any) -> None:
        super().__init__()

    def encode(self, *args: Any, **kwargs: Any) -> list[int]:
        raise NotImplementedError("random tokens stand for no text")

    def decode(self, *args: Any, **kwargs: Any) -> str:
        raise NotImplementedError("random tokens stand for no text")

    def get_vocab_size(self) -> int:
        raise NotImplementedError("random tokens stand for no text")


def small(config: Any, *, steps: int, batch: int = 2, tokens: int = 64) -> Any:
    """Change a Trainer.Config to short steps over random tokens; return it."""
    config.dataloader = RandomTokens.Config(vocabulary=config.model_spec.model.vocab_size)
    config.tokenizer = NoTokenizer.Config()
    config.validator.enable = False
    config.training.local_batch_size = batch
    config.training.seq_len = tokens
    config.training.steps = steps
    config.lr_scheduler.warmup_steps = 0
    config.metrics.log_freq = 1
    return config
