"""Models of a few hundred thousand random parameters, with a tokenizer of their own.

They say nothing sensible, but have everything that a real checkpoint has, in milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch
from tokenizers.pre_tokenizers import ByteLevel

from skerry.inference.models.config import LlamaConfig
from skerry.inference.models.llama import tensor_shapes
from skerry.trainer.source import SourceModel
from skerry.trainer.tokenizer_files import (
    END_OF_TEXT,
    IM_END,
    IM_START,
    byte_level_bpe,
    json_bytes,
    tokenizer_files,
)

_SPECIAL = (END_OF_TEXT, IM_START, IM_END)
_LETTERS = "etaoinshrdlu"  # the most frequent ones; every pair of them is a token
_STD = 0.02
_CONTEXT = 8192


def tiny_llama(
    seed: int = 0, *, layers: int = 4, dim: int = 64, heads: int = 4, kv_heads: int = 2
) -> SourceModel:
    """Return random weights on the BF16 grid, N(0, 0.02), norms at one."""
    return _model(seed, layers=layers, dim=dim, heads=heads, kv_heads=kv_heads)


def tiny_moe(
    seed: int = 0,
    *,
    layers: int = 4,
    dim: int = 64,
    experts: int = 8,
    experts_per_token: int = 2,
    std: float = _STD,
) -> SourceModel:
    """Return the same with sparse MLPs, as a Mixtral checkpoint.

    With `std` near 1 / sqrt(dim) every layer matters, as in a trained model.
    """
    sparse: dict[str, object] = {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "num_local_experts": experts,
        "num_experts_per_tok": experts_per_token,
        "intermediate_size": dim,
    }
    return _model(seed, layers=layers, dim=dim, heads=4, kv_heads=2, std=std, more=sparse)


def _model(
    seed: int,
    *,
    layers: int,
    dim: int,
    heads: int,
    kv_heads: int,
    std: float = _STD,
    more: Mapping[str, object] = MappingProxyType({}),
) -> SourceModel:
    pairs = [(a, b) for a in _LETTERS for b in _LETTERS]
    tokens = [*_SPECIAL, *sorted(ByteLevel.alphabet()), *(a + b for a, b in pairs)]
    eos = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
    config: dict[str, object] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(tokens),
        "hidden_size": dim,
        "intermediate_size": 3 * dim,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": _CONTEXT,
        "rope_theta": 10000.0,
        "rms_norm_eps": 1e-05,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        **eos,
        **more,
    }
    tokenizer = byte_level_bpe(tokens, pairs, _SPECIAL)
    return SourceModel(
        weights=_random_weights(LlamaConfig.from_dict(config), seed, std),
        side_files={
            "config.json": json_bytes(config),
            "generation_config.json": json_bytes(eos),
            **tokenizer_files(tokenizer, context=_CONTEXT),
        },
    )


def _random_weights(config: LlamaConfig, seed: int, std: float) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    weights = {}
    for name, shape in tensor_shapes(config).items():
        if len(shape) == 1:
            weights[name] = torch.ones(shape)
        else:
            values = torch.empty(shape).normal_(0.0, std, generator=random)
            weights[name] = values.to(torch.bfloat16).float()
    return weights
