"""Examples for the OpenAPI document; a test holds them to the schemas that they illustrate."""

from __future__ import annotations

from typing import Any

_HEX = "8f2b91d06c3aa7e45f10c9d27b6e3a184d5c02f9e7a1b3c4d5e6f708192a3b4c"
_KEY = "3b6a27bcceb6a42d62a3a8d02a6f0d73653215771de243a63ac048a18b59da29"
_TIME_MS = 1_700_000_000_000

_ROW: dict[str, Any] = {
    "version": 1,
    "parent": 0,
    "step": 10,
    "form": "patch",
    "state": "live",
    "seq": 2,
    "time_ms": _TIME_MS,
    "epoch": 1,
    "writer": "trainer-0",
    "signed": True,
    "changed": 64,
    "elements": 524_352,
    "share": 64 / 524_352,
    "patch_bytes": 193,
    "record_bytes": 831,
    "full_bytes": 1_049_088,
    "full_bytes_exact": True,
    "bytes_per_changed": 16.0,
    "ratio": 1_049_088 / 1024,
}
_ISLAND: dict[str, Any] = {
    "island": "eu-1",
    "state": "behind",
    "why": None,
    "version": 0,
    "target": 1,
    "lag": 1,
    "said_lag": 1,
    "phase": "fetching",
    "done_bytes": 100,
    "total_bytes": 193,
    "error": None,
    "engines": {"cpu": 0},
    "last_seen_ms": _TIME_MS,
    "age_s": 1.5,
    "looks": [{"time_ms": _TIME_MS, "version": 0, "lag": 1}],
}
_COUNTS = {"current": 0, "behind": 1, "failing": 0, "silent": 0, "stopped": 0, "stray": 0}
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
_NOTHING = {"objects": 0, "total_bytes": 0}


_OVERVIEW: dict[str, Any] = {
    "address": "/bulletins/run-7",
    "run": _HEX,
    "key": _KEY,
    "pinned": True,
    "epoch": 1,
    "writer": "trainer-0",
    "records": 3,
    "versions": 2,
    "live": 2,
    "abandoned": 0,
    "retired": 0,
    "newest": _ROW,
    "log_bytes": 2400,
    "islands": _COUNTS,
    "islands_denied": None,
    "islands_looked_ms": _TIME_MS,
    "store": {
        "state": "ok",
        "problem": None,
        "pending_s": None,
        "answered_ms": _TIME_MS,
        "records_read": 3,
        "records_known": 3,
    },
    "now_ms": _TIME_MS,
    "release": "0.1.0",
}
_VERSIONS: dict[str, Any] = {"total": 2, "newest": 1, "versions": [_ROW], "following": 1}
_VERSION: dict[str, Any] = {
    "row": _ROW,
    "signature": {"state": "verified", "key": _KEY, "pinned": True},
    "result": _HEX,
    "base": _HEX,
    "layout": _HEX,
    "manifest": _HEX,
    "packs": [{"key": f"packs/00000001/{_HEX}", "size": 193, "digest": _HEX, "retired": False}],
    "full": None,
    "full_files": [],
    "children": [],
    "lag": 0,
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
_ISLANDS: dict[str, Any] = {
    "total": 1,
    "newest": 1,
    "counts": _COUNTS,
    "offset": 0,
    "islands": [_ISLAND],
    "refused": [],
    "refused_total": 0,
    "more_than_looked_at": False,
    "looked_ms": _TIME_MS,
}
_CATCH_UP: dict[str, Any] = {
    "have": 0,
    "want": 1,
    "reachable": True,
    "why": None,
    "total_bytes": 193,
    "objects": 1,
    "steps": [{"kind": "patch", "base": 0, "version": 1, "step_bytes": 193, "objects": 1}],
}
_DIFFERENCE: dict[str, Any] = {
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
_STORAGE: dict[str, Any] = {
    "log_bytes": 2400,
    "patches": {"objects": 1, "total_bytes": 193},
    "skips": _NOTHING,
    "fulls": {"objects": 1, "total_bytes": 1_049_088},
    "in_use": {"objects": 2, "total_bytes": 1_049_281},
    "waiting": _NOTHING,
    "due": _NOTHING,
    "retirements": [],
    "retirements_total": 0,
}
_FORECAST: dict[str, Any] = {
    "keep_last": 32,
    "keep_every": None,
    "kept_versions": 2,
    "retired_versions": 0,
    "freed": _NOTHING,
    "left": {"objects": 2, "total_bytes": 1_049_281},
}

EXAMPLES: dict[str, dict[str, Any]] = {
    "/run": _OVERVIEW,
    "/versions": _VERSIONS,
    "/versions/{version}": _VERSION,
    "/versions/{version}/tensors": _TENSORS,
    "/versions/{version}/layers": _LAYERS,
    "/islands": _ISLANDS,
    "/catch-up": _CATCH_UP,
    "/difference": _DIFFERENCE,
    "/storage": _STORAGE,
    "/forecast": _FORECAST,
}


def add_examples(document: dict[str, Any], prefix: str) -> dict[str, Any]:
    """Put an example of an answer beside its schema."""
    for path, example in EXAMPLES.items():
        answer = document["paths"][prefix + path]["get"]["responses"]["200"]
        answer["content"]["application/json"]["example"] = example
    return document
