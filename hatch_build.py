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
from hashlib import sha256
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
        if wish not in ("", "require", "skip"):
            raise ValueError(f"SKERRY_KERNEL_BUILD is require or skip, found {wish!r}")
        # What an editable install finds beside its sources is never older than they are.
        (Path(self.root) / LIBRARY).unlink(missing_ok=True)
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
        compiler = _compiler()
        if compiler is None:
            return "no C++ compiler was found; set CXX or install g++ or clang++"
        directory = Path(self.root) / SOURCES
        units = sorted(str(path) for path in directory.glob("*.cpp"))
        # Under its own name only once it is whole: somebody may be starting Skerry meanwhile.
        made = directory / f".{LIBRARY.name}.{os.getpid()}"
        sources = f'-DSKERRY_SOURCES="{_digest(directory)}"'
        command = [*compiler, *FLAGS, sources, "-o", str(made), *units]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                return f"{shlex.join(command)}: {done.stderr[-2000:]}"
            made.replace(Path(self.root) / LIBRARY)
        except OSError as error:
            return str(error)
        finally:
            made.unlink(missing_ok=True)
        return None


def _digest(directory: Path) -> str:
    """Return what `skerry.codec.native.digest_sources` returns for the sources."""
    stream = sha256()
    for path in sorted(directory.iterdir()):
        if path.suffix in (".cpp", ".h", ".inc"):
            content = path.read_bytes()
            stream.update(b"%s %d\n%s" % (path.name.encode(), len(content), content))
    return stream.hexdigest()


def _compiler() -> list[str] | None:
    named = shlex.split(os.environ.get("CXX", ""))
    if named:
        return named
    found = next(filter(None, map(shutil.which, ("g++", "clang++", "c++"))), None)
    return None if found is None else [found]


def _platform() -> str:
    """Return the wheel's platform: that of this Python, with this machine's C library or newer."""
    plain = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    name, version = platform.libc_ver()
    if name != "glibc" or not plain.startswith("linux_"):
        return plain
    return f"manylinux_{version.replace('.', '_')}_{plain.removeprefix('linux_')}"
