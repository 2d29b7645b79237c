"""Golden packs: literal bytes that every decoder must turn into the same weights, for ever.

`python -m tests.codec.vectors` writes those that are missing and never touches one that exists.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from skerry.codec.digest import Bytes
from skerry.codec.encode import encode_pack
from tests.codec.checkpoints import Weights, mutate, random_bytes, weights_of

DIRECTORY = Path(__file__).parent.parent / "vectors" / "v1" / "packs"
# Written by encoders that knew magnitudes to six bits only; still to be read.
DECODE_ONLY = frozenset({"other-dtypes"})


def cases() -> dict[str, tuple[str, Weights, Weights, int, dict[str, bytes]]]:
    """Return, by name: why the vector exists, both versions, chunk words, files."""
    rng = np.random.default_rng(20_260_101)

    def bf16(words: int) -> Bytes:
        return random_bytes(rng, "BF16", words, True)

    single = weights_of({"w": ("BF16", np.array([0x3F80, 0xBF80], "<u2").view(np.uint8))})
    wide = weights_of({"w": ("BF16", bf16(2048)), "v": ("F8_E4M3", bf16(256))})
    mixed = weights_of(
        {
            "f32": ("F32", random_bytes(rng, "F32", 64, False)),
            "f64": ("F64", random_bytes(rng, "F64", 32, False)),
            "i64": ("I64", random_bytes(rng, "I64", 32, False)),
            "u8": ("U8", random_bytes(rng, "U8", 256, False)),
            "e8m0": ("F8_E8M0", random_bytes(rng, "F8_E8M0", 64, False)),
        }
    )
    zeros = weights_of({"w": ("BF16", np.zeros(2048, np.uint8))})
    return {
        "one-ulp-up": (
            "the smallest change: one BF16 weight, one ULP",
            single,
            single.replace(w=np.array([0x3F81, 0xBF80], "<u2").view(np.uint8)),
            1 << 20,
            {},
        ),
        "sign-of-zero": (
            "-0.0 and +0.0 are different bits",
            zeros,
            zeros.replace(w=np.tile(np.array([0, 0x8000], "<u2"), 512).view(np.uint8)),
            1 << 20,
            {},
        ),
        "context-two-dtypes": (
            "exponent classes, tilts, magnitude tables, escapes, several chunks of one tensor",
            wide,
            wide.replace(
                w=mutate(rng, wide.data["w"], "BF16", 0.03, True),
                v=mutate(rng, wide.data["v"], "F8_E4M3", 0.05, True),
            ),
            512,
            {},
        ),
        "other-dtypes-fine-steps": (
            "words of one, four and eight bytes, floats by exponent and integers without",
            mixed,
            mixed.replace(
                **{
                    spec.name: mutate(rng, mixed.data[spec.name], spec.dtype, 0.1, i % 2 == 0)
                    for i, spec in enumerate(mixed.layout.tensors)
                }
            ),
            1 << 20,
            {},
        ),
        "raw-noise": (
            "a chunk that no model helps is stored as it is",
            zeros,
            zeros.replace(w=rng.integers(0, 256, 2048, np.uint8)),
            1 << 20,
            {},
        ),
        "planes": (
            "a chunk where all words change alike goes under zstd, byte plane by byte plane",
            zeros,
            zeros.replace(w=np.full(2048, 0x3F, np.uint8)),
            1 << 20,
            {},
        ),
        "files-only": ("side files travel whole", single, single, 1 << 20, {"config.json": b"{}"}),
        "nothing": ("a version in which nothing changed", single, single, 1 << 20, {}),
    }


def main() -> None:
    DIRECTORY.mkdir(parents=True, exist_ok=True)
    for name, (why, old, new, chunk_words, files) in cases().items():
        path = DIRECTORY / f"{name}.json"
        if path.exists():
            continue
        base = old.digest()
        pack = encode_pack(
            old.layout, old.read, new.read, base=base.version(), files=files,
            chunk_words=chunk_words,
        )  # fmt: skip
        value = {
            "why": why,
            "chunk_words": chunk_words,
            "tensors": {
                spec.name: [
                    spec.dtype,
                    old.read(spec).tobytes().hex(),
                    new.read(spec).tobytes().hex(),
                ]
                for spec in old.layout.tensors
            },
            "files": {file: content.hex() for file, content in files.items()},
            "base": base.version(),
            "result": base.replace(pack.leaves).version(),
            "pack": pack.data.hex(),
        }
        path.write_text(json.dumps(value, indent=1) + "\n")


if __name__ == "__main__":
    main()
