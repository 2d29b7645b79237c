"""`skerry info`: what is installed, and which code path encodes and decodes."""

from __future__ import annotations

from skerry.cli.options import JsonOption
from skerry.cli.output import print_fields, print_json

_LIBRARIES = ("numpy", "zstandard", "blake3", "cryptography", "torch", "aiohttp", "fastapi")


def info(as_json: JsonOption = False) -> None:
    """Print versions, and which codec is used."""
    import platform
    from importlib.metadata import PackageNotFoundError, version
    from importlib.util import find_spec

    def installed(name: str) -> str | None:
        try:
            return version(name)
        except PackageNotFoundError:
            return None

    native = find_spec("skerry.codec._kernel") is not None
    values = {
        "skerry": installed("skerry"),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "codec": "native kernel" if native else "numpy reference (no kernel was built; slower)",
        **{name: installed(name) for name in _LIBRARIES},
    }
    if as_json:
        print_json(values)
    else:
        print_fields((name, value or "not installed") for name, value in values.items())
