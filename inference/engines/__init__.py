"""Engines that implement `skerry.inference.engine.Engine`.

The built-in CPU engine needs torch, and vLLM's adapter an HTTP client, so each is imported when it
is asked for, and not before.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from skerry.inference.engines.cpu import CpuEngine
    from skerry.inference.engines.sglang import SglangEngine
    from skerry.inference.engines.vllm import VllmEngine
    from skerry.inference.engines.vllm_config import SglangConfig, VllmConfig

__all__ = ["CpuEngine", "SglangConfig", "SglangEngine", "VllmConfig", "VllmEngine"]

_HOMES = {
    "CpuEngine": ("cpu", "the built-in engine", "engine"),
    "SglangConfig": ("vllm_config", "the adapter of SGLang", "vllm"),
    "SglangEngine": ("sglang", "the adapter of SGLang", "vllm"),
    "VllmConfig": ("vllm_config", "the adapter of vLLM", "vllm"),
    "VllmEngine": ("vllm", "the adapter of vLLM", "vllm"),
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, what, extra = _HOMES[name]
    try:
        return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{what} needs {error.name}: pip install 'skerry[{extra}]'", name=error.name
        ) from error
