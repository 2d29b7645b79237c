"""Engines that implement `skerry.inference.engine.Engine`.

The built-in CPU engine needs torch, so it is imported when it is asked for, and not before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from skerry.inference.engines.cpu import CpuEngine

__all__ = ["CpuEngine"]


def __getattr__(name: str) -> object:
    if name != "CpuEngine":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from skerry.inference.engines.cpu import CpuEngine
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"the built-in engine needs {error.name}: pip install 'skerry[engine]'", name=error.name
        ) from error
    return CpuEngine
