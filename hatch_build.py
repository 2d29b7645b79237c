"""Builds the native kernel when the package is built, if a C++17 compiler is there.

`SKERRY_KERNEL_BUILD=require` makes a missing compiler an error, `skip` leaves the kernel out.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES = Path("codec/native")
LIBRARY = SOURCES / "_kernel.so"
# No -march: each file asks for what it needs, and the right one is chosen at run time.
FLAGS = ("-std=c++17", "-O3", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", "-Wextra")


class KernelHook(BuildHookInterface[Any]):
    """Compiles `codec/native/*.cpp` into one library beside them."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        wish = os.environ.get("SKERRY_KERNEL_BUILD", "")
        problem = "SKERRY_KERNEL_BUILD=skip" if wish == "skip" else self._compile()
        if problem is None:
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{_platform()}"
            build_data["artifacts"].append(f"/{LIBRARY}")
        elif wish == "require":
            raise RuntimeError(f"the native kernel was not built: {problem}")
        else:
            self.app.display_warning(
                f"Skerry's native kernel was not built ({problem}): it will encode and decode with "
                "NumPy, many times slower and with the same bytes."
            )

    def _compile(self) -> str | None:
        """Compile; return what went wrong, if anything did."""
        root = Path(self.root)
        (root / LIBRARY).unlink(missing_ok=True)
        compiler = _compiler()
        if compiler is None:
            return "no C++ compiler was found; set CXX or install g++ or clang++"
        sources = sorted(str(path) for path in (root / SOURCES).glob("*.cpp"))
        command = [*compiler, *FLAGS, "-o", str(root / LIBRARY), *sources]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            return str(error)
        return None if done.returncode == 0 else f"{shlex.join(command)}: {done.stderr[-2000:]}"


def _compiler() -> list[str] | None:
    named = shlex.split(os.environ.get("CXX", ""))
    if named:
        return named
    found = next(filter(None, map(shutil.which, ("g++", "clang++", "c++"))), None)
    return None if found is None else [found]


def _platform() -> str:
    """Return the wheel's platform: the C library's oldest version is this machine's."""
    name, version = platform.libc_ver()
    if name != "glibc":
        return sysconfig.get_platform().replace("-", "_").replace(".", "_")
    return f"manylinux_{version.replace('.', '_')}_{platform.machine()}"
