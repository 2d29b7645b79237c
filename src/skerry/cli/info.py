"""`skerry info`: what is installed, and which code path encodes and decodes."""

from __future__ import annotations

from skerry.cli.options import JsonOption
from skerry.cli.output import print_fields, print_json

_LIBRARIES = ("numpy", "zstandard", "blake3", "cryptography", "torch", "aiohttp", "fastapi")


def info(as_json: JsonOption = False) -> None:
    """Print versions, and which codec is used."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    from skerry.codec import kernel

    def installed(name: str) -> str | None:
        try:
            return version(name)
        except PackageNotFoundError:
            return None

    values = {
        "skerry": installed("skerry"),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "kernel": kernel.current().name,
        "kernels": list(kernel.available()),
        **{name: installed(name) for name in _LIBRARIES},
    }
    if as_json:
        print_json(values)
    else:
        print_fields((name, _text(value)) for name, value in values.items())


def _text(value: str | list[str] | None) -> str:
    if isinstance(value, list):
        return ", ".join(value)
    return value or "not installed"
