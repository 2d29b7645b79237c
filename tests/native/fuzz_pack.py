"""Fuzzes whole packs: `python -m tests.native.fuzz_pack SECONDS CORPUS`, guided where atheris is.

Atheris has wheels for few versions of Python.  Without it the same damage is done at random.
"""

from __future__ import annotations

import importlib
import random
import sys
import time
from pathlib import Path
from types import ModuleType

_MOST_SECONDS_EACH = 20
_MOST_MEMORY_MB = 2048


def main(seconds: int, corpus: Path) -> None:
    try:
        atheris = importlib.import_module("atheris")
    except ImportError as error:
        print(f"{error}: fuzzing without guidance")
        _unguided(seconds, corpus)
    else:
        _guided(atheris, seconds, corpus)


def _guided(atheris: ModuleType, seconds: int, corpus: Path) -> None:
    with atheris.instrument_imports(include=["skerry.codec"]):
        packs = importlib.import_module("tests.native.packs")

    def mutator(data: bytes, most: int, seed: int) -> bytes:
        changed: bytes = packs.damaged(data, random.Random(seed), atheris.Mutate)
        return changed[:most]

    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(packs.seeds()):
        (corpus / f"golden-{number}").write_bytes(seed)
    options = [
        f"-max_total_time={seconds}",
        f"-timeout={_MOST_SECONDS_EACH}",
        f"-rss_limit_mb={_MOST_MEMORY_MB}",
        f"-max_len={packs.MOST_PACK_BYTES}",
        f"-artifact_prefix={corpus.parent}/",
    ]
    atheris.Setup([sys.argv[0], *options, str(corpus)], packs.check, custom_mutator=mutator)
    atheris.Fuzz()


def _unguided(seconds: int, corpus: Path) -> None:
    packs = importlib.import_module("tests.native.packs")
    rng = random.Random(1)
    pool = packs.seeds()
    end, runs, sound = time.monotonic() + seconds, 0, 0
    while time.monotonic() < end:
        data = packs.damaged(rng.choice(pool), rng, packs.plain_mutation(rng))
        try:
            sound += packs.check(data)
        except BaseException:
            corpus.parent.mkdir(parents=True, exist_ok=True)
            (corpus.parent / "crash-pack").write_bytes(data)
            raise
        runs += 1
    print(f"{runs} packs, {sound} of them sound")


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
