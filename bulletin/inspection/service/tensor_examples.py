"""Examples of answers about tensors, for the OpenAPI document."""

from __future__ import annotations

from typing import Any

HEX = "8f2b91d06c3aa7e45f10c9d27b6e3a184d5c02f9e7a1b3c4d5e6f708192a3b4c"

_TENSOR: dict[str, Any] = {
    "name": "model.layers.0.self_attn.q_proj.weight",
    "dtype": "BF16",
    "shape": [512, 512],
    "layer": 0,
    "projection": "q_proj",
    "changed": 64,
    "elements": 262_144,
    "share": 64 / 262_144,
    "raw_bytes": 128,
    "patch_bytes": 170,
}
_CELL = {
    "layer": 0,
    "projection": "q_proj",
    "tensors": 1,
    "changed": 64,
    "elements": 262_144,
    "share": 64 / 262_144,
    "patch_bytes": 170,
}
_TENSORS: dict[str, Any] = {
    "version": 1,
    "compared": True,
    "total": 1,
    "offset": 0,
    "tensors": [_TENSOR],
}
_LAYERS: dict[str, Any] = {
    "version": 1,
    "compared": True,
    "layers": [0],
    "projections": ["q_proj"],
    "cells": [_CELL],
}
_SIZES: dict[str, Any] = {
    "raw_bytes": 128,
    "full_bytes": 1_049_088,
    "tensors": 3,
    "tensors_changed": 1,
    "files": [{"name": "model.safetensors", "size": 1_049_088}],
    "side_files_changed": ["generation_config.json"],
    "recipe": {},
}
_MANIFEST: dict[str, Any] = {
    "manifest": HEX,
    "layout": HEX,
    "raw_bytes": 128,
    "full_bytes": 1_049_088,
    "files": [{"name": "model.safetensors", "size": 1_049_088}],
    "side_files_changed": [],
    "recipe": {},
    "tensors": [_TENSOR],
}
_HEAT: dict[str, Any] = {
    "first": 0,
    "last": 1,
    "asked": 2,
    "unread": 0,
    "rows": [{"layer": 0, "projection": "q_proj"}],
    "columns": [
        {
            "version": 0,
            "why": "nobody compared it with its parent",
            "changed": [None],
            "elements": [None],
        },
        {"version": 1, "why": None, "changed": [64], "elements": [262_144]},
    ],
}
_HISTORY: dict[str, Any] = {
    "name": "model.layers.0.self_attn.q_proj.weight",
    "first": 1,
    "last": 1,
    "asked": 1,
    "unread": 0,
    "points": [
        {
            "version": 1,
            "changed": 64,
            "elements": 262_144,
            "share": 64 / 262_144,
            "patch_bytes": 170,
            "why": None,
        }
    ],
}
DIFFERENCE: dict[str, Any] = {
    "old": 0,
    "new": 1,
    "identical_weights": False,
    "layout_changed": False,
    "compared": [1],
    "uncompared": [],
    "exact": True,
    "at_most": 64,
    "elements": 524_352,
    "share_at_most": 64 / 524_352,
}
_DIFFERENCES: dict[str, Any] = {
    "difference": DIFFERENCE,
    "total": 1,
    "tensors": [
        {
            "name": "model.layers.0.self_attn.q_proj.weight",
            "layer": 0,
            "projection": "q_proj",
            "elements": 262_144,
            "at_most": 64,
            "share_at_most": 64 / 262_144,
            "versions": 1,
        }
    ],
    "only_old": [],
    "only_new": [],
}

TENSOR_EXAMPLES: dict[str, dict[str, Any]] = {
    "/manifests/{digest}": _MANIFEST,
    "/versions/{version}/sizes": _SIZES,
    "/versions/{version}/tensors": _TENSORS,
    "/versions/{version}/layers": _LAYERS,
    "/heat": _HEAT,
    "/tensor": _HISTORY,
    "/difference/tensors": _DIFFERENCES,
}
