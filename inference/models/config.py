"""The shape of a Llama or Mixtral model, as `config.json` and `generation_config.json` state it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_MAX_CONFIG_BYTES = 1 << 20
_UNSUPPORTED = ("attention_bias", "mlp_bias", "rope_scaling", "sliding_window")
_DENSE, _SPARSE = "LlamaForCausalLM", "MixtralForCausalLM"


class UnsupportedModel(ValueError):
    """The checkpoint is sound, but no model that this package can run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaConfig:
    """Everything that the forward pass needs to know beside the weights."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    context: int  # tokens
    rope_theta: float
    norm_eps: float
    tied: bool
    eos: frozenset[int]
    experts: int = 0  # of a sparse MLP; 0: it is dense
    experts_per_token: int = 0

    def __post_init__(self) -> None:
        sizes = (self.vocab_size, self.hidden_size, self.intermediate_size, self.layers)
        if min(*sizes, self.heads, self.kv_heads, self.head_dim, self.context) < 1:
            raise UnsupportedModel(f"every size must be at least 1: {self}")
        if self.heads % self.kv_heads or self.head_dim % 2:
            raise UnsupportedModel(
                f"{self.heads} heads over {self.kv_heads} key heads of dimension {self.head_dim}"
            )

        if not 0 <= self.experts_per_token <= self.experts or (
            self.experts and not self.experts_per_token
        ):
            raise UnsupportedModel(f"{self.experts_per_token} of {self.experts} experts a token")

    @classmethod
    def from_dict(
        cls, config: Mapping[str, object], generation: Mapping[str, object] | None = None
    ) -> LlamaConfig:
        """Read Hugging Face's keys.  Raises UnsupportedModel for anything this model cannot do."""
        architectures = config.get("architectures")
        if architectures not in ([_DENSE], [_SPARSE]):
            raise UnsupportedModel(f"expected {_DENSE} or {_SPARSE}, found {architectures}")
        sparse = architectures == [_SPARSE]
        for key in _UNSUPPORTED:
            if config.get(key) not in (None, False):
                raise UnsupportedModel(f"{key} {config[key]!r:.80} is not supported")
        if config.get("hidden_act", "silu") != "silu":
            raise UnsupportedModel(f"hidden_act: expected silu, found {config['hidden_act']!r:.40}")
        heads = _int(config, "num_attention_heads")
        hidden = _int(config, "hidden_size")
        return cls(
            vocab_size=_int(config, "vocab_size"),
            hidden_size=hidden,
            intermediate_size=_int(config, "intermediate_size"),
            layers=_int(config, "num_hidden_layers"),
            heads=heads,
            kv_heads=_int(config, "num_key_value_heads", heads),
            head_dim=_int(config, "head_dim", hidden // max(heads, 1)),
            context=_int(config, "max_position_embeddings", 2048),
            rope_theta=_float(config, "rope_theta", 10_000.0),
            norm_eps=_float(config, "rms_norm_eps", 1e-6),
            tied=config.get("tie_word_embeddings", False) is True,
            eos=_eos((generation or {}).get("eos_token_id", config.get("eos_token_id"))),
            experts=_int(config, "num_local_experts", 8) if sparse else 0,
            experts_per_token=_int(config, "num_experts_per_tok", 2) if sparse else 0,
        )

    @classmethod
    def from_files(cls, files: Mapping[str, bytes]) -> LlamaConfig:
        """Read the side files of a checkpoint, by file name."""
        generation = files.get("generation_config.json")
        return cls.from_dict(
            _object("config.json", files["config.json"]),
            None if generation is None else _object("generation_config.json", generation),
        )

    @classmethod
    def from_directory(cls, directory: Path) -> LlamaConfig:
        """Read the side files of a checkpoint directory.  Raises OSError or UnsupportedModel."""
        files = {"config.json": _read(directory / "config.json")}
        generation = directory / "generation_config.json"
        if generation.is_file():
            files[generation.name] = _read(generation)
        return cls.from_files(files)


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        data = file.read(_MAX_CONFIG_BYTES + 1)
    if len(data) > _MAX_CONFIG_BYTES:
        raise UnsupportedModel(f"{path.name} exceeds {_MAX_CONFIG_BYTES} bytes")
    return data


def _object(name: str, data: bytes) -> Mapping[str, object]:
    try:
        value = json.loads(data)
    except ValueError as error:
        raise UnsupportedModel(f"{name} is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise UnsupportedModel(f"{name}: expected an object, found {type(value).__name__}")
    return value


def _int(config: Mapping[str, object], key: str, default: int | None = None) -> int:
    value = config.get(key)
    if value is None:
        value = default
    if type(value) is not int:
        raise UnsupportedModel(f"{key}: expected an integer, found {value!r:.40}")
    return value


def _float(config: Mapping[str, object], key: str, default: float) -> float:
    value = config.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UnsupportedModel(f"{key}: expected a number, found {value!r:.40}")
    return float(value)


def _eos(value: object) -> frozenset[int]:
    items = value if isinstance(value, list) else [] if value is None else [value]
    if not all(type(item) is int for item in items):
        raise UnsupportedModel(f"eos_token_id: expected integers, found {value!r:.40}")
    return frozenset(items)
