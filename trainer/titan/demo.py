"""The torchtitan side of `skerry demo`: a tiny Qwen3 that trains on what its islands say.

`torchrun -m skerry.trainer.titan.cpu --module skerry.trainer.titan.demo --config tiny …`
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torchtitan.components.dataloader import BaseDataLoader

from skerry.inference.client import RolloutClient
from skerry.inference.completion import Completion
from skerry.inference.config import ClientConfig
from skerry.trainer.titan import Publishing, cpu, publishing
from skerry.trainer.titan.tiny import small

_VOCABULARY = 320
_LAYERS = 2
_BATCH, _TOKENS = 4, 32
_LR = 1e-6  # of post-training
_WAIT_S = 300.0  # of one request, the most that a gate takes
_PATIENCE_S = 1800  # an engine on a busy CPU starts within minutes
_PATIENT = ClientConfig(retry_budget_s=_PATIENCE_S)
_PROMPT = (1, 2, 3)


class Rollouts(BaseDataLoader):  # type: ignore[misc]
    """The batch of step n+1 is what one island's version n makes: no version is skipped.

    Each rank asks the gate of its number, and tells in `log`, JSON lines, which versions answered.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):  # type: ignore[misc]
        gates: list[str] = field(default_factory=list)
        log: str = ""

    def __init__(
        self, config: Config, *, dp_rank: int, seq_len: int, local_batch_size: int, **others: Any
    ) -> None:
        self._gate = config.gates[dp_rank % len(config.gates)]
        self._log = Path(config.log) / f"rollouts-{dp_rank}.jsonl"
        self._tokens, self._batch = seq_len + 1, local_batch_size
        self._step = 0

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        while True:
            tokens = torch.tensor(asyncio.run(self._ask()))
            self._step += 1
            yield {"input": tokens[:, :-1].contiguous()}, tokens[:, 1:].contiguous()

    async def _ask(self) -> list[list[int]]:
        accepted = f"{self._step}.."

        async def one(gate: RolloutClient, number: int) -> Completion:
            return await gate.complete(
                _PROMPT,
                accepted=accepted,
                wait_s=_WAIT_S,
                max_tokens=self._tokens,
                seed=self._step * self._batch + number,
                ignore_eos=True,
            )

        async with RolloutClient(self._gate, config=_PATIENT) as gate:
            made = await asyncio.gather(*(one(gate, number) for number in range(self._batch)))
        spans = Counter(span.version for completion in made for span in completion.spans)
        with self._log.open("a") as file:
            line = {"event": "rollouts", "accepted": accepted, "versions": dict(spans)}
            file.write(json.dumps(line) + "\n")
        return [list(completion.tokens) for completion in made]

    def state_dict(self) -> dict[str, Any]:
        return {"step": self._step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._step = state_dict["step"]


def tiny() -> Any:
    """Return the run's configuration; where to publish and whom to ask is for the command line."""
    from torchtitan.models.qwen3.config_registry import qwen3_debugmodel

    config = small(qwen3_debugmodel(), steps=6, batch=_BATCH, tokens=_TOKENS)
    model = config.model_spec.model
    model.layers = model.layers[:_LAYERS]
    model.vocab_size = _VOCABULARY
    model.tok_embeddings.num_embeddings = model.lm_head.out_features = _VOCABULARY
    cpu.fit(config)
    config.dataloader = Rollouts.Config()
    for group in config.optimizer.param_groups:
        group.optimizer_kwargs["lr"] = _LR
    # One rank's island may be up long before the other's.
    config.comm.init_timeout_seconds = config.comm.train_timeout_seconds = _PATIENCE_S
    return publishing(config, Publishing.Config())
