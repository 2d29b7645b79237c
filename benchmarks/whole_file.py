"""Rivals that see a file of bytes: two programs that find differences, and a compressor of weights.

The programs read and write files of the system's temporary directory; their time is that of the
process alone.
"""

from __future__ import annotations

import importlib
import os
import shutil
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from skerry.benchmarks.measure import run_program
from skerry.benchmarks.rival import Rival
from skerry.codec.dtypes import Words

_ZIPNN_DTYPES = {2: "bfloat16", 1: "float8_e4m3fn"}


def _program(
    name: str,
    program: str,
    encode: Sequence[str],
    decode: Sequence[str],
    *,
    slice_share: float = 1.0,
) -> Rival:
    """Return a rival that is a program; {old}, {new} and {patch} stand for its files."""

    def run(command: Sequence[str], given: dict[str, Any], wanted: str) -> bytes:
        with TemporaryDirectory(prefix="skerry-bench-") as directory:
            paths = {key: Path(directory) / key for key in ("old", "new", "patch")}
            for key, data in given.items():
                paths[key].write_bytes(data)
            run_program([program, *(argument.format(**paths) for argument in command)])
            return paths[wanted].read_bytes()

    def encode_words(old: Words, new: Words) -> list[bytes]:
        if not new.size:
            return []  # on an empty file some versions of zstd abort
        return [run(encode, {"old": old.tobytes(), "new": new.tobytes()}, "patch")]

    def apply(words: Words, parts: Sequence[bytes]) -> None:
        if not parts:
            return
        new = run(decode, {"old": words.tobytes(), "patch": parts[0]}, "new")
        words.reshape(-1)[:] = np.frombuffer(new, words.dtype)

    return Rival(
        name=name,
        used_by="binary patches of any file",
        encode=encode_words,
        apply=apply,
        scope="file",
        slow=True,
        slice_share=slice_share,
        missing=lambda: None if shutil.which(program) else f"no program {program} on the path",
    )


def _zipnn(words: Words) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of torch.jit, when it is imported
        module = importlib.import_module("zipnn")
    return module.ZipNN(
        bytearray_dtype=_ZIPNN_DTYPES[words.dtype.itemsize],
        input_format="byte",
        threads=os.cpu_count() or 1,
    )


def _zipnn_encode(old: Words, new: Words) -> list[bytes]:
    return [bytes(_zipnn(new).compress(new.tobytes()))]  # a new file stands by itself


def _zipnn_apply(words: Words, parts: Sequence[bytes]) -> None:
    words.reshape(-1)[:] = np.frombuffer(_zipnn(words).decompress(parts[0]), words.dtype)


def _patch_from(level: int, *, slice_share: float = 1.0) -> Rival:
    return _program(
        f"zstd -{level} --patch-from",
        "zstd",
        [
            "-q",
            "-f",
            f"-{level}",
            "-T0",
            "--long=27",
            "--patch-from={old}",
            "{new}",
            "-o",
            "{patch}",
        ],
        ["-q", "-f", "-d", "--long=27", "--patch-from={old}", "{patch}", "-o", "{new}"],
        slice_share=slice_share,
    )


_SOURCE = ("-B", str(1 << 27))  # bytes of the old file that xdelta3 looks at: all of a slice

XDELTA3 = _program(
    "xdelta3",
    "xdelta3",
    ["-e", "-f", "-q", *_SOURCE, "-s", "{old}", "{new}", "{patch}"],
    ["-d", "-f", "-q", *_SOURCE, "-s", "{old}", "{patch}", "{new}"],
)
PATCH_FROM = _patch_from(3)
PATCH_FROM_19 = _patch_from(19, slice_share=1 / 16)
ZIPNN = Rival(
    name="ZipNN on the new file",
    used_by="whole checkpoints",
    encode=_zipnn_encode,
    apply=_zipnn_apply,
    scope="file",
    slow=True,
    missing=lambda: None if find_spec("zipnn") else "no package zipnn: pip install 'skerry[bench]'",
)
