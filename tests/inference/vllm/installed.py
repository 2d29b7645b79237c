"""Whether vLLM is here, and what its processes need to be started with in tests."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

_WHY = "vLLM is not installed here: `make test-vllm` runs this in an environment of its own"


def require_vllm() -> None:
    """Skip the calling module, loudly, where there is no vLLM."""
    if importlib.util.find_spec("vllm") is None:
        pytest.skip(_WHY, allow_module_level=True)


def environment(**more: str) -> Mapping[str, str]:
    """Return the environment of a vLLM process: offline, silent, our plug-in alone."""
    return {
        **os.environ,
        "VLLM_PLUGINS": "skerry",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_ENFORCE_STRICT_TOOL_CALLING": "0",  # arguments by their schema alone
        "PYTHONPATH": os.pathsep.join(
            [str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH", "")]
        ),
        **more,
    }
