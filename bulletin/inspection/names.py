"""Where in a model a tensor sits, as far as its name tells: layer and projection.  Pure.

Law: every name has a projection, and names that differ in the number of their layer alone have the
same one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks|block|layer)\.(\d{1,9})(?=\.|$)")
_EXPERT = re.compile(r"\.experts\.\d{1,9}(?=\.|$)")
_KIND = re.compile(r"\.(weight|bias|weight_scale_inv|weight_scale)$")
_FLOW = {
    name: rank
    for rank, name in enumerate(
        [
            "embed_tokens", "wte", "input_layernorm", "q_proj", "k_proj", "v_proj", "qkv_proj",
            "q_norm", "k_norm", "o_proj", "post_attention_layernorm", "gate", "gate_proj",
            "up_proj", "gate_up_proj", "down_proj", "norm", "lm_head",
        ]
    )
}  # fmt: skip
_APART = {"bias": ".bias", "weight_scale_inv": ".scale", "weight_scale": ".scale"}


@dataclass(frozen=True, slots=True)
class Place:
    """`layer` is None for what belongs to none: embeddings, head, last norm."""

    layer: int | None
    projection: str


def reading_order(where: Place) -> tuple[bool, int, int, str]:
    """Return what places are sorted by: layers, and in each the way of a token where it is known.

    What is in no layer comes last.
    """
    kind = where.projection.split(".")
    rank = _FLOW.get(kind[1] if kind[0] == "experts" and len(kind) > 1 else kind[0], len(_FLOW))
    return where.layer is None, where.layer or 0, rank, where.projection


def place(name: str) -> Place:
    """Return where a tensor sits.

    All experts of a layer are one projection; biases and block scales are apart from the weights.
    """
    match = _LAYER.search(name)
    rest = name if match is None else name[match.end() :].lstrip(".")
    rest = _EXPERT.sub(".experts", f".{rest}").lstrip(".")
    kind = _KIND.search(rest)
    parts = _KIND.sub("", rest).split(".")
    projection = ".".join(parts[-2:]) if "experts" in parts[:-1] else parts[-1]
    if kind is not None:
        projection += _APART.get(kind[1], "")
    return Place(None if match is None else int(match[1]), projection or name)
