"""Checkpoint directories on disk, and the updates that lead from one to the next."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from skerry.codec.digest import Digest, leaf_digests, tensor_digest, version_digest
from skerry.codec.header import build_header
from skerry.codec.tensors import TensorChanges, TensorSpec
from skerry.inference.engine import Engine, GeneratedToken, GenerationRequest, WeightUpdate
from skerry.publisher.arrays import ServedTensor
from skerry.trainer.tiny import tiny_llama

Weights = Mapping[str, ServedTensor]

SHARDS = 2


def tiny_weights(seed: int = 0) -> dict[str, ServedTensor]:
    return tiny_llama(seed).served()


def write_checkpoint(
    directory: Path, weights: Weights, side_files: Mapping[str, bytes] | None = None
) -> Path:
    """Write two shards, an index and the side files (None: those of the tiny model)."""
    directory.mkdir(parents=True)
    for name, data in (side_files or tiny_llama().side_files).items():
        (directory / name).write_bytes(data)
    names = sorted(weights)
    weight_map = {}
    for shard in range(SHARDS):
        file = f"model-{shard + 1:05}-of-{SHARDS:05}.safetensors"
        inside = names[shard::SHARDS]
        header = build_header(file, [(n, weights[n].dtype, weights[n].shape) for n in inside])
        data = b"".join(weights[n].raw.tobytes() for n in inside)
        (directory / file).write_bytes(header.raw + data)
        weight_map.update(dict.fromkeys(inside, file))
    (directory / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": weight_map})
    )
    return directory


def digest_of(weights: Weights) -> Digest:
    return version_digest(
        {
            name: tensor_digest(name, t.dtype, t.shape, leaf_digests(t.raw))
            for name, t in weights.items()
        }
    )


def nudged(weights: Weights, *, seed: int, share: float = 0.3) -> dict[str, ServedTensor]:
    """Move `share` of the words of every tensor a little: another version of the same model."""
    random = np.random.default_rng(seed)
    result = {}
    for name, tensor in weights.items():
        words = tensor.data.copy()
        words[random.random(words.shape) < share] ^= 0x0015
        result[name] = ServedTensor(dtype=tensor.dtype, shape=tensor.shape, data=words)
    return result


def update_between(old: Weights, new: Weights, *, base: int, version: int) -> WeightUpdate:
    changes = [changes_of(name, old[name], new[name]) for name in old]
    return WeightUpdate(
        base=base,
        version=version,
        digest=digest_of(new),
        changes=[c for c in changes if c.positions.size],
    )


def changes_of(name: str, old: ServedTensor, new: ServedTensor) -> TensorChanges:
    spec = TensorSpec(
        name=name,
        dtype=old.dtype,
        shape=old.shape,
        file="model.safetensors",
        offset=0,
        nbytes=old.data.nbytes,
    )
    before, after = spec.view(old.raw), spec.view(new.raw)
    positions = np.flatnonzero(before != after).astype(np.int64)
    return TensorChanges(
        spec=spec, positions=positions, old=before[positions], new=after[positions]
    )


async def complete(
    engine: Engine,
    prompt: Sequence[int],
    *,
    max_tokens: int = 8,
    temperature: float = 0.0,
    seed: int | None = None,
    on_token: Callable[[GeneratedToken], None] = lambda _: None,
) -> list[GeneratedToken]:
    request = GenerationRequest(
        prompt=tuple(prompt),
        max_tokens=max_tokens,
        temperature=temperature,
        seed=seed,
        ignore_eos=True,
    )
    tokens = []
    async for token in engine.generate(request):
        on_token(token)
        tokens.append(token)
    return tokens


async def swap(engine: Engine, update: WeightUpdate) -> None:
    """Stage, pause, install, resume: what the agent does."""
    await engine.stage(update)
    await engine.pause()
    try:
        await engine.install(update)
    finally:
        await engine.resume()


async def sampled(engine: Engine) -> list[tuple[int, float]]:
    """A fingerprint of the weights: a greedy and a seeded completion with log-probabilities."""
    prompt = engine.encode("the sea")
    tokens = await complete(engine, prompt) + await complete(
        engine, prompt, temperature=1.0, seed=7
    )
    return [(token.token, token.logprob) for token in tokens]


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    """Run an async scenario within a bound: a hang is a failure and no stopped suite."""

    async def bounded() -> None:
        async with asyncio.timeout(60):
            await scenario()

    asyncio.run(bounded())
