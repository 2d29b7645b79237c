"""Router replay: the trainer sends every token to the experts that the engine sent it to.

Engine and trainer compute in other precisions and orders, and with other versions' weights; where
two experts score nearly alike they choose differently, and a token's probability jumps.  Replayed
are the choices alone; how much each chosen expert counts comes from the trainer's own scores, so
that the router learns (R3, Ma et al. 2025, arXiv:2510.11370).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch

from skerry.inference.models.config import LlamaConfig
from skerry.inference.models.moe import Choose
from skerry.inference.routed import Experts, RoutedExpertsInvalid, decode_routed
from skerry.trainer.rl.rollouts import Rollout

logger = logging.getLogger(__name__)


def is_routed(rollout: Rollout, config: LlamaConfig) -> bool:
    """Say whether a rollout can be replayed; an island that sends other bytes is logged."""
    if rollout.routed_experts is None:
        return False
    try:
        _experts(rollout, rollout.routed_experts, config)
    except RoutedExpertsInvalid as error:
        logger.warning("rollout of prompt %d: %s", rollout.group, error)
        return False
    return True


def replayed(rollouts: Sequence[Rollout], config: LlamaConfig, device: torch.device) -> Choose:
    """Return what chooses as the engines did, for the rollouts' padded inputs.

    Padding goes to the first experts: no real token sees it.  Raises ValueError for a rollout
    without routed experts, RoutedExpertsInvalid for one with those of another model.
    """
    lengths = [len(rollout.prompt) + len(rollout.tokens) - 1 for rollout in rollouts]
    experts = torch.arange(config.experts_per_token).repeat(
        len(rollouts), max(lengths), config.layers, 1
    )
    for row, (rollout, length) in enumerate(zip(rollouts, lengths, strict=True)):
        if rollout.routed_experts is None:
            raise ValueError(f"rollout {row} came without routed experts")
        found = _experts(rollout, rollout.routed_experts, config)
        experts[row, :length] = torch.from_numpy(found.astype("i8"))
    experts = experts.to(device)
    return lambda layer, scores: experts[:, :, layer]


def _experts(rollout: Rollout, data: bytes, config: LlamaConfig) -> Experts:
    length = len(rollout.prompt) + len(rollout.tokens) - 1
    shape = (length, config.layers, config.experts_per_token)
    return decode_routed(data, shape=shape, count=config.experts)
