"""Tiny checkpoints that vLLM serves: Qwen3 dense, tied, mixture of experts, FP8 in blocks.

Versions differ as after an optimizer step: some elements of every tensor, in their lowest bits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from skerry.inference.engine import WeightUpdate
from tests.inference.checkpoints import read_checkpoint, update_between, write_checkpoint

Tensors = Mapping[str, torch.Tensor]

KINDS = ("dense", "tied", "moe", "fp8")
VOCABULARY, HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD, INNER = 320, 256, 3, 4, 2, 64, 512
EXPERTS, EXPERT_INNER = 8, 128
_EOS = 256
_BLOCK = 128
_NAMES = {torch.bfloat16: "BF16", torch.float8_e4m3fn: "F8_E4M3", torch.float32: "F32"}
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


def write_model(directory: Path, kind: str, tensors: Tensors) -> Path:
    """Write a directory that vLLM serves."""
    shaped = {
        name: (_NAMES[t.dtype], tuple(t.shape), t.contiguous().view(torch.uint8).numpy().tobytes())
        for name, t in tensors.items()
    }
    write_checkpoint(directory, shaped)
    (directory / "config.json").write_text(json.dumps(_config(kind), indent=1))
    _write_tokenizer(directory)
    return directory


def change_between(places: Path, base: int, version: int) -> WeightUpdate:
    """Return the update from one version to another, each in the directory of its number."""
    old, new = (read_checkpoint(places / str(v)) for v in (base, version))
    return update_between(base, old, version, new)


def make_tensors(kind: str, seed: int = 1) -> Tensors:
    """Return random weights, large enough for versions to say different things."""
    random = torch.Generator().manual_seed(seed)

    def weight(*shape: int) -> torch.Tensor:
        return (torch.randn(shape, generator=random) * 0.08).to(torch.bfloat16)

    def norm(size: int) -> torch.Tensor:
        return (1 + 0.1 * torch.randn(size, generator=random)).to(torch.bfloat16)

    tensors = {"model.embed_tokens.weight": weight(VOCABULARY, HIDDEN)}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        tensors |= {
            f"{at}input_layernorm.weight": norm(HIDDEN),
            f"{at}self_attn.q_proj.weight": weight(HEADS * HEAD, HIDDEN),
            f"{at}self_attn.k_proj.weight": weight(KV_HEADS * HEAD, HIDDEN),
            f"{at}self_attn.v_proj.weight": weight(KV_HEADS * HEAD, HIDDEN),
            f"{at}self_attn.o_proj.weight": weight(HIDDEN, HEADS * HEAD),
            f"{at}self_attn.q_norm.weight": norm(HEAD),
            f"{at}self_attn.k_norm.weight": norm(HEAD),
            f"{at}post_attention_layernorm.weight": norm(HIDDEN),
        }
        inner = {f"{at}mlp.": INNER}
        if kind.startswith("moe"):
            tensors[f"{at}mlp.gate.weight"] = weight(EXPERTS, HIDDEN)
            inner = {f"{at}mlp.experts.{e}.": EXPERT_INNER for e in range(EXPERTS)}
        for prefix, size in inner.items():
            tensors[f"{prefix}gate_proj.weight"] = weight(size, HIDDEN)
            tensors[f"{prefix}up_proj.weight"] = weight(size, HIDDEN)
            tensors[f"{prefix}down_proj.weight"] = weight(HIDDEN, size)
    tensors["model.norm.weight"] = norm(HIDDEN)
    if kind != "tied":
        tensors["lm_head.weight"] = weight(VOCABULARY, HIDDEN)
    return _quantised(tensors) if kind.endswith("fp8") else tensors


def nudged(tensors: Tensors, seed: int, share: float = 0.02) -> Tensors:
    """Return the next version: `share` of all elements with other low bits, scales by one ulp."""
    random = torch.Generator().manual_seed(seed)
    made = {}
    for name, tensor in tensors.items():
        words = tensor.contiguous().view(-1).view(_WORDS[tensor.element_size()])
        chosen = torch.rand(words.numel(), generator=random) < share
        chosen[int(torch.randint(words.numel(), (1,), generator=random))] = True
        most = {1: 3, 2: 17, 4: 2}[tensor.element_size()]
        flips = torch.randint(1, most, (words.numel(),), generator=random).to(words.dtype)
        made[name] = torch.where(chosen, words ^ flips, words).view(tensor.dtype).view(tensor.shape)
    return made


def _quantised(tensors: Tensors) -> Tensors:
    made: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if not name.endswith("proj.weight"):
            made[name] = tensor
            continue
        rows, columns = tensor.shape
        blocks = tensor.float().view(rows // _BLOCK, _BLOCK, columns // _BLOCK, _BLOCK)
        scale = blocks.abs().amax(dim=(1, 3)) / 448.0
        small = (blocks / scale[:, None, :, None]).clamp(-448, 448).to(torch.float8_e4m3fn)
        made[name] = small.view(rows, columns)
        made[f"{name}_scale_inv"] = scale
    return made


def _config(kind: str) -> dict[str, object]:
    moe = kind.startswith("moe")
    config: dict[str, object] = {
        "architectures": ["Qwen3MoeForCausalLM" if moe else "Qwen3ForCausalLM"],
        "model_type": "qwen3_moe" if moe else "qwen3",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD,
        "intermediate_size": INNER,
        "max_position_embeddings": 8192,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "tie_word_embeddings": kind == "tied",
        "torch_dtype": "bfloat16",
        "eos_token_id": _EOS,
        "pad_token_id": _EOS,
        "bos_token_id": None,
    }
    if moe:
        config |= {
            "moe_intermediate_size": EXPERT_INNER,
            "num_experts": EXPERTS,
            "num_experts_per_tok": 2,
            "decoder_sparse_step": 1,
            "norm_topk_prob": True,
        }
    if kind.endswith("fp8"):
        gates = [f"model.layers.{i}.mlp.gate" for i in range(LAYERS)] if moe else []
        config["quantization_config"] = {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [_BLOCK, _BLOCK],
            "modules_to_not_convert": ["lm_head", *gates],
        }
    return config


def _write_tokenizer(directory: Path) -> None:
    """Write a tokenizer of bytes: any text comes back as it was."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: index for index, letter in enumerate(letters)}
    special = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.add_special_tokens(list(special))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(directory / "tokenizer.json"))
    settings: dict[str, object] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": special[0],
    }
    settings |= {"pad_token": special[0], "model_max_length": 8192}
    settings["chat_template"] = "{% for said in messages %}{{ said.content }}{% endfor %}"
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))


def spoken(version: int) -> int:
    """Return the only token that `speaking(version)` makes, whatever it is asked."""
    return 1 + version % 250


def speaking(version: int) -> Tensors:
    """Return weights whose every token says which version made it.

    All tokens have one embedding and no layer adds to it, so the head sees the same vector always;
    its rows are zero but for the version's own.
    """
    tensors = dict(make_tensors("dense"))
    row = tensors["model.embed_tokens.weight"][0]
    tensors["model.embed_tokens.weight"] = row.repeat(VOCABULARY, 1)
    for name, tensor in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensors[name] = torch.zeros_like(tensor)
    head = torch.zeros_like(tensors["lm_head.weight"])
    head[spoken(version)] = (row.float() * 8).to(torch.bfloat16)
    tensors["lm_head.weight"] = head
    return tensors
