"""Two ranks of a real vLLM: each holds its shards, and they change together.

Slow to start on few cores, so only with SKERRY_TEST_RANKS=1 (and not in CI).
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from skerry.inference.engine import GenerationRequest
from tests.inference.checkpoints import digest_of, read_checkpoint, update_between
from tests.inference.vllm.checkpoints import make_tensors, nudged, write_model
from tests.inference.vllm.installed import require_vllm
from tests.inference.vllm.server import running

require_vllm()

pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        os.environ.get("SKERRY_TEST_RANKS") != "1", reason="SKERRY_TEST_RANKS is not 1"
    ),
]


@pytest.mark.parametrize(
    ("kind", "more", "speaks"),
    [
        ("dense", (), True),
        ("moe", (), True),
        # vLLM 0.32.0's kernel for experts on CPUs dies of SIGSEGV when they are spread over ranks.
        ("moe", ("--enable-expert-parallel",), False),
    ],
    ids=["tp", "tp-moe", "tp-ep"],
)
def test_two_ranks_hold_each_version_shard_by_shard(
    tmp_path: Path, kind: str, more: tuple[str, ...], speaks: bool
) -> None:
    """Reading back compares every shard of every rank with the version's bits."""
    tensors = make_tensors(kind)
    paths = [write_model(tmp_path / "0", kind, tensors)]
    for version in range(1, 4):
        tensors = nudged(tensors, version)
        paths.append(write_model(tmp_path / str(version), kind, tensors))
    mirror = tmp_path / "mirror"
    write_model(mirror, kind, make_tensors(kind))

    async def body() -> None:
        engine = server.engine()
        request = GenerationRequest(
            prompt=tuple(range(10, 40)), max_tokens=16, temperature=0.0, ignore_eos=True
        )

        async def say() -> list[tuple[int, float]]:
            return [(t.token, t.logprob) async for t in engine.generate(request)]

        try:
            await engine.load(mirror, 0)
            for version in range(1, 4):
                old, new = (read_checkpoint(paths[v]) for v in (version - 1, version))
                data = (paths[version] / "model.safetensors").read_bytes()
                (mirror / "model.safetensors").write_bytes(data)
                change = update_between(version - 1, old, version, new)
                await engine.stage(change)
                await engine.pause()
                await engine.install(change)
                await engine.resume()
                assert await engine.weights_digest() == digest_of(new)
                if speaks:
                    said = await say()
                    await engine.load(paths[version], version)
                    assert said == await say()
                    await engine.load(mirror, version)
        finally:
            await engine.close()

    cores = {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}  # a rank each: vLLM wants a node of memory each
    with running(paths[0], tmp_path, "--tensor-parallel-size", "2", *more, **cores) as server:
        asyncio.run(body())
