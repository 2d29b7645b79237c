"""Examples for the OpenAPI document; a test holds them to the schemas that they illustrate."""

from __future__ import annotations

from typing import Any

from skerry.bulletin.inspection.service.tensor_examples import (
    DIFFERENCE,
    HEX,
    TENSOR_EXAMPLES,
)

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
_NOTHING = {"objects": 0, "total_bytes": 0}


_OVERVIEW: dict[str, Any] = {
    "address": "/bulletins/run-7",
    "run": HEX,
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
    "result": HEX,
    "base": HEX,
    "layout": HEX,
    "manifest": HEX,
    "packs": [{"key": f"packs/00000001/{HEX}", "size": 193, "digest": HEX, "retired": False}],
    "full": None,
    "full_files": [],
    "children": [],
    "lag": 0,
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

_RECORDS: dict[str, Any] = {
    "total": 3,
    "records": [
        {
            "seq": 2,
            "time_ms": _TIME_MS,
            "epoch": 1,
            "writer": "trainer-0",
            "kind": "commit",
            "record_bytes": 831,
            "signed": True,
            "key": _KEY,
            "version": 1,
        }
    ],
    "following": None,
}
_TIMELINE: dict[str, Any] = {
    "total": 2,
    "newest": 1,
    "first": 1,
    **{name: [_ROW[name]] for name in ("version", "step", "time_ms", "form", "state", "share")},
    **{name: [_ROW[name]] for name in ("patch_bytes", "full_bytes", "bytes_per_changed", "ratio")},
}
_LINEAGE: dict[str, Any] = {
    "total": 2,
    "newest": 1,
    "first": 1,
    "last": 1,
    "lanes": 1,
    "versions": [
        {
            **{name: _ROW[name] for name in ("version", "parent", "step", "form", "state")},
            "lane": 0,
            "rollback": False,
        }
    ],
    "skips": [{"base_version": 0, "version": 1, "skip_bytes": 193, "usable": True}],
}
_EVENTS = (
    'event: store\ndata: {"state": "ok", "problem": null}\n\n'
    f'event: log\ndata: {{"seq": 2, "head": "{HEX}", "newest": 1, "versions": 2}}\n\n'
    f'event: islands\ndata: {{"looked_ms": {_TIME_MS}, "changes": 1}}\n\n: beat\n\n'
)
_VERIFICATION = (
    f'{{"version": 1, "what": "packs/00000001/{HEX}", "checked_bytes": 193, "problem": null}}\n'
    '{"version": 1, "done": true, "stopped_by": null, "deep": false, "checks": 1, "problems": 0, '
    '"checked_bytes": 193}\n'
)

EXAMPLES: dict[str, dict[str, Any]] = {
    **TENSOR_EXAMPLES,
    "/run": _OVERVIEW,
    "/runs": {"runs": [{"name": "run-7", "href": "./", "overview": _OVERVIEW}]},
    "/versions": _VERSIONS,
    "/versions/{version}": _VERSION,
    "/records": _RECORDS,
    "/timeline": _TIMELINE,
    "/lineage": _LINEAGE,
    "/islands": _ISLANDS,
    "/islands/{island}": {"island": _ISLAND, "catch_up": _CATCH_UP},
    "/catch-up": _CATCH_UP,
    "/difference": DIFFERENCE,
    "/storage": _STORAGE,
    "/forecast": _FORECAST,
}
STREAMS = {
    "/events": ("text/event-stream", _EVENTS),
    "/versions/{version}/verification": ("application/x-ndjson", _VERIFICATION),
}
HEALTH: dict[str, Any] = {"status": "ok", "store": _OVERVIEW["store"]}


def add_examples(document: dict[str, Any], prefix: str) -> dict[str, Any]:
    """Put an example of an answer beside its schema."""
    examples: dict[str, tuple[str, Any]] = {
        prefix + path: ("application/json", example) for path, example in EXAMPLES.items()
    }
    examples |= {prefix + path: example for path, example in STREAMS.items()}
    examples["/health"] = ("application/json", HEALTH)
    for path, (kind, example) in examples.items():
        if path not in document["paths"]:
            continue  # the list of runs is not with each of them
        document["paths"][path]["get"]["responses"]["200"]["content"][kind]["example"] = example
    return document
