"""What the demo serves beside weights: `python -m skerry.trainer.titan.demo_files DIRECTORY`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tokenizers.pre_tokenizers import ByteLevel

from skerry.trainer.titan import cpu
from skerry.trainer.tokenizer_files import (
    END_OF_TEXT,
    IM_END,
    IM_START,
    byte_level_bpe,
    json_bytes,
    tokenizer_files,
)

_CONTEXT = 512


def qwen3_files(model: Any) -> dict[str, bytes]:
    """Return config.json for a torchtitan Qwen3, and a tokenizer of bytes."""
    attention, feed_forward = model.layers[0].attention, model.layers[0].feed_forward
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": model.vocab_size,
        "hidden_size": model.dim,
        "num_hidden_layers": len(model.layers),
        "num_attention_heads": attention.n_heads,
        "num_key_value_heads": attention.n_kv_heads,
        "head_dim": attention.head_dim,
        "intermediate_size": feed_forward.w1.out_features,
        "max_position_embeddings": _CONTEXT,
        "hidden_act": "silu",
        "rms_norm_eps": model.norm.eps,
        "rope_theta": attention.rope.theta,
        "attention_bias": False,
        "tie_word_embeddings": model.enable_weight_tying,
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
    }
    special = (END_OF_TEXT, IM_START, IM_END)
    tokenizer = byte_level_bpe([*sorted(ByteLevel.alphabet()), *special], (), special)
    return {"config.json": json_bytes(config), **tokenizer_files(tokenizer, context=_CONTEXT)}


def main() -> None:
    cpu.prepare()
    from skerry.trainer.titan.demo import tiny

    directory = Path(sys.argv[1])
    directory.mkdir(parents=True)
    for name, data in qwen3_files(tiny().model_spec.model).items():
        (directory / name).write_bytes(data)


if __name__ == "__main__":
    main()
