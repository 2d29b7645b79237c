"""The Llama forward pass, with dense or sparse MLPs; `named_parameters()` are the checkpoint's.

Linear layers compute in the dtype of their weights, norms and logits in FP32: log-probabilities
that come out of a BF16 product are off by up to 0.06, as much as a clip range of RL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)
from torch import Tensor, nn

from skerry.inference.models.config import LlamaConfig, UnsupportedModel
from skerry.inference.models.kv import causal
from skerry.inference.models.linear import Linear
from skerry.inference.models.moe import Choose, Recorder, SparseMLP

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]  # layer, q, k, v -> output
Rope = tuple[Tensor, Tensor]  # cosines and sines, broadcastable to [batch, heads, tokens, head dim]

_HEAD_BLOCK = 1024  # rows of the output embedding that are FP32 at a time: they stay in the cache


class Embedding(nn.Module):
    """A table of rows, one per token."""

    def __init__(self, tokens: int, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(tokens, size))

    def forward(self, tokens: Tensor) -> Tensor:
        return F.embedding(tokens, self.weight)


class RMSNorm(nn.Module):
    """Scale to unit root mean square, in FP32."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * scale * self.weight).to(x.dtype)


class Attention(nn.Module):
    """Grouped-query attention with rotary positions; where keys come from is the caller's."""

    def __init__(self, config: LlamaConfig, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.head_dim = config.head_dim
        queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
        self.q_proj = Linear(config.hidden_size, queries)
        self.k_proj = Linear(config.hidden_size, keys)
        self.v_proj = Linear(config.hidden_size, keys)
        self.o_proj = Linear(queries, config.hidden_size)

    def forward(self, x: Tensor, rope: Rope, attend: Attend) -> Tensor:
        q = _rotate(self._heads(self.q_proj(x)), rope)
        k = _rotate(self._heads(self.k_proj(x)), rope)
        v = self._heads(self.v_proj(x))
        mixed: Tensor = self.o_proj(attend(self.layer, q, k, v).transpose(1, 2).flatten(2))
        return mixed

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], -1, self.head_dim).transpose(1, 2)


class MLP(nn.Module):
    """SwiGLU."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.gate_proj = Linear(config.hidden_size, config.intermediate_size)
        self.up_proj = Linear(config.hidden_size, config.intermediate_size)
        self.down_proj = Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x: Tensor) -> Tensor:
        mixed: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return mixed


class Block(nn.Module):
    """One decoder layer."""

    def __init__(self, config: LlamaConfig, layer: int) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.norm_eps)
        self.self_attn = Attention(config, layer)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.norm_eps)
        if config.experts:
            self.block_sparse_moe = SparseMLP(config, layer)
        else:
            self.mlp = MLP(config)
        self._sparse = config.experts > 0

    def forward(self, x: Tensor, rope: Rope, attend: Attend, choose: Choose) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rope, attend)
        normed = self.post_attention_layernorm(x)
        made = self.block_sparse_moe(normed, choose) if self._sparse else self.mlp(normed)
        mixed: Tensor = x + made
        return mixed


class Body(nn.Module):
    """Everything below the output embedding."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(Block(config, n) for n in range(config.layers))
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)


class Llama(nn.Module):
    """A causal language model over a HF Llama checkpoint."""

    def __init__(self, config: LlamaConfig, tensors: Mapping[str, Tensor]) -> None:
        """Adopt `tensors`, without a copy, as the parameters.

        Raises UnsupportedModel unless they are exactly the model's tensors, in the model's shapes.
        """
        super().__init__()
        self.config = config
        self.model = Body(config)
        if not config.tied:
            self.lm_head = Linear(config.hidden_size, config.vocab_size)
        _check_tensors(tensor_shapes(config), tensors)
        self.load_state_dict(dict(tensors), assign=True)
        half = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
        self._frequencies = 1.0 / config.rope_theta**half

    @property
    def head(self) -> Tensor:
        """The output embedding, shape [vocabulary, hidden]."""
        return self.model.embed_tokens.weight if self.config.tied else self.lm_head.weight

    def hidden(
        self,
        tokens: Tensor,
        positions: Tensor,
        attend: Attend = causal,
        choose: Choose | None = None,
    ) -> Tensor:
        """Return the last hidden states, [batch, tokens, hidden], of `tokens` [batch, tokens].

        `positions` has shape [tokens] or [batch, tokens].  `choose` picks the experts of a sparse
        model; None: those with the highest scores.
        """
        rope = self._rope(positions)
        choose = choose or Recorder(self.config.experts_per_token)
        x = self.model.embed_tokens(tokens)
        for block in self.model.layers:
            x = block(x, rope, attend, choose)
        normed: Tensor = self.model.norm(x)
        return normed

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Return FP32 logits, shape [n, vocabulary], of hidden states [n, hidden]; no gradient."""
        head = self.head
        if head.dtype == torch.float32:
            return hidden.float() @ head.T
        columns = hidden.float().T.contiguous()
        out = torch.empty(head.shape[0], columns.shape[1])
        wide = torch.empty(_HEAD_BLOCK, head.shape[1])  # reused: a fresh block costs page faults
        for start in range(0, head.shape[0], _HEAD_BLOCK):
            rows = head[start : start + _HEAD_BLOCK]
            block = wide[: rows.shape[0]].copy_(rows)
            torch.mm(block, columns, out=out[start : start + _HEAD_BLOCK])
        return out.T.contiguous()

    def _rope(self, positions: Tensor) -> Rope:
        angles = positions[..., None].float() * self._frequencies.to(positions.device)
        angles = torch.cat((angles, angles), dim=-1)
        if positions.dim() == 2:
            angles = angles[:, None]  # one axis for the heads
        return angles.cos(), angles.sin()


def tensor_shapes(config: LlamaConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor of the model, by HF name."""
    hidden = config.hidden_size
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    block: dict[str, tuple[int, ...]] = {
        "input_layernorm": (hidden,),
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "post_attention_layernorm": (hidden,),
        **_mlp_shapes(config),
    }
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, hidden)}
    for layer in range(config.layers):
        shapes |= {f"model.layers.{layer}.{part}.weight": s for part, s in block.items()}
    shapes |= {"model.norm.weight": (hidden,)}
    if not config.tied:
        shapes |= {"lm_head.weight": (config.vocab_size, hidden)}
    return shapes


def _mlp_shapes(config: LlamaConfig) -> dict[str, tuple[int, ...]]:
    hidden, inner = config.hidden_size, config.intermediate_size
    if not config.experts:
        up, down = (inner, hidden), (hidden, inner)
        return {"mlp.gate_proj": up, "mlp.up_proj": up, "mlp.down_proj": down}
    shapes: dict[str, tuple[int, ...]] = {"block_sparse_moe.gate": (config.experts, hidden)}
    for expert in range(config.experts):
        for name, shape in (
            ("w1", (inner, hidden)),
            ("w2", (hidden, inner)),
            ("w3", (inner, hidden)),
        ):
            shapes[f"block_sparse_moe.experts.{expert}.{name}"] = shape
    return shapes


def _rotate(x: Tensor, rope: Rope) -> Tensor:
    cos, sin = rope
    first, second = x.float().chunk(2, dim=-1)
    turned = torch.cat((-second, first), dim=-1)
    return (x * cos + turned * sin).to(x.dtype)


def _check_tensors(expected: Mapping[str, tuple[int, ...]], found: Mapping[str, Tensor]) -> None:
    missing, extra = expected.keys() - found.keys(), found.keys() - expected.keys()
    if missing or extra:
        raise UnsupportedModel(
            f"the model's tensors: {len(missing)} missing {sorted(missing)[:3]}, "
            f"{len(extra)} unknown {sorted(extra)[:3]}"
        )
    for name, shape in expected.items():
        if found[name].shape != shape:
            raise UnsupportedModel(
                f"{name}: expected shape {tuple(shape)}, found {tuple(found[name].shape)}"
            )
    wide = {tensor.dtype for tensor in found.values() if tensor.dim() > 1}
    if len(wide) > 1:
        raise UnsupportedModel(f"matrices of different dtypes: {sorted(map(str, wide))}")
