"""A random model of the shape of Qwen3-0.6B, and steps of it, for `bench_pause`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from skerry.codec.digest import Digest
from skerry.codec.dtypes import Words
from skerry.codec.header import build_header
from skerry.codec.tensors import TensorChanges, TensorSpec
from skerry.inference.engine import WeightUpdate

HIDDEN, INNER, HEADS, KV_HEADS, HEAD, VOCABULARY = 1024, 3072, 16, 8, 128, 151_936
_DEVIATION = 0.02
_STEP_BITS = 3  # the lowest ones: most changes of a real step are one ulp


@dataclass(frozen=True, slots=True)
class Model:
    """Words by tensor, and where each lies in the one shard."""

    specs: Mapping[str, TensorSpec]
    words: Mapping[str, Words]
    header: bytes
    layers: int

    @property
    def parameters(self) -> int:
        return sum(words.size for words in self.words.values())

    def write(self, directory: Path) -> Path:
        """Write a directory that vLLM serves, given tokens instead of text."""
        directory.mkdir(parents=True, exist_ok=True)
        with (directory / "model.safetensors").open("wb") as file:
            file.write(self.header)
            for words in self.words.values():
                file.write(words.data)
        (directory / "config.json").write_text(json.dumps(_config(self.layers)))
        return directory


def make(layers: int, seed: int) -> Model:
    random = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCABULARY, HIDDEN)}
    for layer in range(layers):
        at = f"model.layers.{layer}."
        shapes |= {
            f"{at}input_layernorm.weight": (HIDDEN,),
            f"{at}self_attn.q_proj.weight": (HEADS * HEAD, HIDDEN),
            f"{at}self_attn.k_proj.weight": (KV_HEADS * HEAD, HIDDEN),
            f"{at}self_attn.v_proj.weight": (KV_HEADS * HEAD, HIDDEN),
            f"{at}self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD),
            f"{at}self_attn.q_norm.weight": (HEAD,),
            f"{at}self_attn.k_norm.weight": (HEAD,),
            f"{at}post_attention_layernorm.weight": (HIDDEN,),
            f"{at}mlp.gate_proj.weight": (INNER, HIDDEN),
            f"{at}mlp.up_proj.weight": (INNER, HIDDEN),
            f"{at}mlp.down_proj.weight": (HIDDEN, INNER),
        }
    shapes["model.norm.weight"] = (HIDDEN,)
    header = build_header(
        "model.safetensors", [(name, "BF16", shape) for name, shape in shapes.items()]
    )
    words = {}
    for name, shape in shapes.items():
        values = random.standard_normal(int(np.prod(shape)), np.float32) * _DEVIATION
        values += len(shape) == 1  # norms are near one
        words[name] = (values.view(np.uint32) >> 16).astype(np.uint16)
    return Model({spec.name: spec for spec in header.tensors}, words, header.raw, layers)


def step(model: Model, share: float, seed: int) -> tuple[Model, list[TensorChanges]]:
    """Return the model after a step that changes `share` of its words, and the changes."""
    random = np.random.default_rng(seed)
    after, changes = {}, []
    for name, words in model.words.items():
        positions = np.flatnonzero(random.random(words.size, np.float32) < share)
        flips = random.integers(1, 1 << _STEP_BITS, positions.size, np.uint16)
        after[name] = new = words.copy()
        new[positions] ^= flips
        if positions.size:
            changes.append(
                TensorChanges(
                    spec=model.specs[name],
                    positions=positions,
                    old=words[positions],
                    new=new[positions],
                )
            )
    return Model(model.specs, after, model.header, model.layers), changes


def update(changes: list[TensorChanges], base: int, *, back: bool) -> WeightUpdate:
    """Return the update that makes the changes, or takes them back."""
    turned = [
        TensorChanges(spec=c.spec, positions=c.positions, old=c.new, new=c.old) for c in changes
    ]
    # Only compared with itself: what the engine ends up with is compared with a directory.
    digest = Digest(f"{base + 1:064x}")
    return WeightUpdate(
        base=base, version=base + 1, digest=digest, changes=turned if back else changes
    )


def _config(layers: int) -> dict[str, object]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "num_hidden_layers": layers,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD,
        "intermediate_size": INNER,
        "max_position_embeddings": 4096,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "attention_bias": False,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "eos_token_id": 151645,
        "bos_token_id": None,
    }
