"""The machine that figures were measured on, and how fast it copies memory."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path

import numpy as np
import zstandard

_PACKAGES = ("skerry", "numpy", "zstandard", "blake3", "torch", "zipnn")
_PROGRAMS = {"zstd": ["zstd", "--version"], "xdelta3": ["xdelta3", "-V"]}
_COPIED = 1 << 28  # bytes: far more than any cache holds
_COPIES = 7


def machine(kernel: str) -> dict[str, object]:
    """Return what figures depend on; `kernel` is the codec's path."""
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.platform(),
        "load": os.getloadavg()[0],  # of others, if the benchmark is alone
        "kernel": kernel,
        "python": platform.python_version(),
        "libzstd": ".".join(map(str, zstandard.ZSTD_VERSION)),
        **{name: _installed(name) for name in _PACKAGES},
        "programs": {name: _version(command) for name, command in _PROGRAMS.items()},
    }


def memcpy_speed(threads: int, nbytes: int = _COPIED) -> float:
    """Return bytes a second that memory is copied with, both sides resident: the best of a few."""
    source, target = np.ones(nbytes, np.uint8), np.zeros(nbytes, np.uint8)
    parts = np.linspace(0, nbytes, threads + 1, dtype=np.int64)

    def copy(part: int) -> None:
        some = slice(parts[part], parts[part + 1])
        np.copyto(target[some], source[some])

    fastest = float("inf")
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(_COPIES):
            began = time.perf_counter()
            list(pool.map(copy, range(threads)))
            fastest = min(fastest, time.perf_counter() - began)
    return nbytes / fastest


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor())


def _installed(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _version(command: list[str]) -> str | None:
    if shutil.which(command[0]) is None:
        return None
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return (done.stdout + done.stderr).strip().partition("\n")[0]
