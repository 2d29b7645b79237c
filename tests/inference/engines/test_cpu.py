"""The built-in engine: what it serves equals the checkpoint, before, while and after it changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from skerry.codec.tensors import TensorChanges
from skerry.inference.engine import (
    EngineBroken,
    EngineError,
    GeneratedToken,
    GenerationRequest,
    InstallFailed,
    RequestUnsupported,
    WeightUpdate,
)
from skerry.inference.engines import CpuEngine
from skerry.inference.engines.scatter import Write, put_words
from tests.inference.engine_contract import EngineContract, EngineWorld
from tests.inference.engines.checkpoints import (
    changes_of,
    complete,
    digest_of,
    nudged,
    run,
    sampled,
    swap,
    tiny_weights,
    update_between,
    write_checkpoint,
)

OLD = tiny_weights()
NEW = nudged(OLD, seed=1)
UPDATE = update_between(OLD, NEW, base=0, version=1)


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "old", OLD)


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "new", NEW)


@asynccontextmanager
async def serving(
    directory: Path, version: int = 0, *, put: Write = put_words, max_sequences: int = 8
) -> AsyncIterator[CpuEngine]:
    engine = CpuEngine(threads=1, max_sequences=max_sequences, put=put)
    try:
        await engine.load(directory, version)
        yield engine
    finally:
        await engine.close()


def with_changes(*changes: TensorChanges) -> WeightUpdate:
    return WeightUpdate(base=0, version=1, digest=UPDATE.digest, changes=changes)


def respec(changes: TensorChanges, **fields: object) -> TensorChanges:
    return replace(changes, spec=replace(changes.spec, **fields))  # type: ignore[arg-type]


class FailingWrite:
    """Writes like the real one until its n-th call, and fails from there on for `times` calls."""

    def __init__(self, after: int, times: int) -> None:
        self.after, self.times = after, times

    def __call__(self, words: torch.Tensor, positions: torch.Tensor, bits: torch.Tensor) -> None:
        self.after -= 1
        if self.after < 0 and self.times > 0:
            self.times -= 1
            half = len(positions) // 2
            put_words(words, positions[:half], bits[:half])
            raise RuntimeError("the memory has a hole")
        put_words(words, positions, bits)


class TestCpuEngine(EngineContract):
    @pytest.fixture
    def world(self, old: Path, new: Path) -> EngineWorld:
        return EngineWorld(make=lambda: CpuEngine(threads=1), old=old, new=new)


def test_what_it_serves_hashes_to_the_checkpoint(old: Path) -> None:
    async def scenario() -> None:
        async with serving(old, 3) as engine:
            assert engine.version == 3
            assert await engine.weights_digest() == digest_of(OLD)

    run(scenario)


def test_a_live_install_equals_a_fresh_engine_on_the_new_checkpoint(old: Path, new: Path) -> None:
    async def scenario() -> None:
        async with serving(old) as live, serving(new, 1) as fresh:
            before = await sampled(live)
            await swap(live, UPDATE)
            assert live.version == 1
            assert await live.weights_digest() == UPDATE.digest == digest_of(NEW)
            assert await sampled(live) == await sampled(fresh) != before

    run(scenario)


def test_a_seed_repeats_and_no_seed_does_not(old: Path) -> None:
    async def scenario() -> None:
        async with serving(old) as engine:
            prompt = engine.encode("the sea")
            drawn = [
                [t.token for t in await complete(engine, prompt, temperature=1.0, seed=seed)]
                for seed in (5, 5, None, None)
            ]
            assert drawn[0] == drawn[1]
            assert drawn[2] != drawn[3]

    run(scenario)


def test_every_token_carries_the_version_that_was_installed(old: Path) -> None:
    async def scenario() -> None:
        async with serving(old) as engine:
            await engine.stage(UPDATE)
            began, at_pause, tokens = asyncio.Event(), 0, list[GeneratedToken]()

            def note(token: GeneratedToken) -> None:
                tokens.append(token)
                if len(tokens) == 5:
                    began.set()

            task = asyncio.create_task(
                complete(engine, engine.encode("the"), max_tokens=200, on_token=note)
            )
            await began.wait()
            await engine.pause()
            await asyncio.sleep(0)  # what was made before the pause is in the queue: read it
            at_pause = await settled(tokens)
            await engine.install(UPDATE)
            assert len(tokens) == at_pause, "a token was made in the pause"
            await engine.resume()
            await task
            versions = [token.version for token in tokens]
            assert 5 <= at_pause < 200
            assert versions == [0] * at_pause + [1] * (200 - at_pause)

    run(scenario)


async def settled(tokens: list[GeneratedToken]) -> int:
    """Return how many tokens there are once the loop has nothing more to hand over."""
    count = -1
    while count != len(tokens):
        count = len(tokens)
        for _ in range(10):
            await asyncio.sleep(0)
    return count


def test_a_request_in_a_pause_waits_for_the_resume(old: Path) -> None:
    async def scenario() -> None:
        async with serving(old) as engine:
            await engine.pause()
            task = asyncio.create_task(complete(engine, engine.encode("the")))
            await engine.stage(UPDATE)
            await engine.install(UPDATE)
            assert not task.done()
            await engine.resume()
            assert {token.version for token in await task} == {1}

    run(scenario)


@pytest.mark.parametrize("after", [0, 1, 7])
def test_an_install_that_fails_half_way_puts_the_old_bits_back(old: Path, after: int) -> None:
    async def scenario() -> None:
        async with serving(old, put=FailingWrite(after, times=1)) as engine:
            before = await sampled(engine)
            with pytest.raises(InstallFailed, match="hole"):
                await swap(engine, UPDATE)
            assert engine.version == 0
            assert await engine.weights_digest() == digest_of(OLD)
            assert await sampled(engine) == before
            await swap(engine, UPDATE)  # trying again is the agent's part, and works
            assert await engine.weights_digest() == digest_of(NEW)

    run(scenario)


def test_weights_that_cannot_be_restored_are_never_served(old: Path, new: Path) -> None:
    async def scenario() -> None:
        async with serving(old, put=FailingWrite(3, times=2)) as engine:
            running = asyncio.create_task(complete(engine, engine.encode("the"), max_tokens=400))
            await engine.stage(UPDATE)
            await engine.pause()
            with pytest.raises(EngineBroken):
                await engine.install(UPDATE)
            await engine.resume()
            assert engine.version is None
            for broken in (running, complete(engine, (1,)), engine.weights_digest()):
                with pytest.raises(EngineBroken):
                    await broken
            await engine.load(new, 1)
            assert await engine.weights_digest() == digest_of(NEW)
            assert len(await complete(engine, engine.encode("the"))) == 8

    run(scenario)


def test_an_update_that_does_not_fit_is_refused_while_serving(old: Path) -> None:
    name = "model.norm.weight"
    change = changes_of(name, OLD[name], NEW[name])
    other = update_between(NEW, OLD, base=0, version=1)

    async def scenario() -> None:
        async with serving(old) as engine:
            for update, rule in (
                (other, "not the base"),
                (update_between(OLD, NEW, base=4, version=5), "expects base 4, found 0"),
                (with_changes(change, change), "named twice"),
                (with_changes(respec(change, name="lm_head.weight")), "no such tensor"),
                (with_changes(respec(change, shape=(8, 8))), "found"),
                (with_changes(respec(change, dtype="F16")), "found"),
                (with_changes(replace(change, positions=change.positions[::-1])), "ascend"),
                (with_changes(replace(change, positions=change.positions + 60)), "ascend"),
                (with_changes(replace(change, new=change.new[1:])), "differ in shape"),
                (with_changes(replace(change, old=change.old.astype(np.uint32))), "2 bytes"),
            ):
                with pytest.raises(InstallFailed, match=rule):
                    await engine.stage(update)
                await engine.pause()
                with pytest.raises(InstallFailed, match="not staged"):
                    await engine.install(update)
                await engine.resume()
            assert await engine.weights_digest() == digest_of(OLD)

    run(scenario)


def test_weights_are_only_written_in_a_pause(old: Path) -> None:
    async def scenario() -> None:
        async with serving(old) as engine:
            await engine.stage(UPDATE)
            with pytest.raises(InstallFailed, match="pause"):
                await engine.install(UPDATE)
            assert engine.version == 0

    run(scenario)


def test_closing_the_iterator_frees_its_place(old: Path) -> None:
    async def scenario() -> None:
        async with serving(old, max_sequences=1) as engine:
            request = GenerationRequest(prompt=(5,), max_tokens=500, ignore_eos=True)
            async with aclosing(engine.generate(request)) as tokens:
                assert (await anext(tokens)).finish_reason is None
            # The only row is free again long before 500 tokens could have been made.
            assert len(await complete(engine, (6,), max_tokens=3)) == 3

    run(scenario)


def test_more_requests_than_rows_all_end_and_do_not_mix(old: Path) -> None:
    async def scenario() -> None:
        async with serving(old, max_sequences=3) as engine:
            prompts = [engine.encode(text) for text in ("the sea", "a", "one tree is", "no", "12")]
            lengths = [3, 9, 5, 1, 7]
            alone = [
                await complete(engine, p, max_tokens=n)
                for p, n in zip(prompts, lengths, strict=True)
            ]
            together = await asyncio.gather(
                *(complete(engine, p, max_tokens=n) for p, n in zip(prompts, lengths, strict=True))
            )
            for one, other in zip(alone, together, strict=True):
                assert [t.token for t in one] == [t.token for t in other]
                assert other[-1].finish_reason == "length"
                np.testing.assert_allclose(
                    [t.logprob for t in one], [t.logprob for t in other], atol=2e-2
                )

    run(scenario)


def test_the_end_token_stops_unless_it_is_ignored(old: Path) -> None:
    async def scenario() -> None:
        async with serving(old) as engine:
            found = None
            for seed in range(200):  # one token in 400 ends the text
                request = GenerationRequest(prompt=(5,), max_tokens=40, seed=seed)
                tokens = [t async for t in engine.generate(request)]
                assert (tokens[-1].finish_reason == "stop") == (tokens[-1].token == 2)
                if len(tokens) < 40:
                    found = seed, len(tokens)
                    break
            assert found is not None
            tokens = await complete(engine, (5,), max_tokens=40, temperature=1.0, seed=found[0])
            assert tokens[found[1] - 1].token == 2
            assert len(tokens) == 40

    run(scenario)


def test_a_load_lets_running_requests_end_first_even_in_a_pause(old: Path, new: Path) -> None:
    async def scenario() -> None:
        async with serving(old) as engine:
            began = asyncio.Event()
            running = asyncio.create_task(
                complete(engine, (5,), max_tokens=100, on_token=lambda _: began.set())
            )
            await began.wait()
            await engine.pause()
            await engine.load(new, 9)
            assert {token.version for token in await running} == {0}
            await engine.resume()
            assert {token.version for token in await complete(engine, (5,))} == {9}

    run(scenario)


@pytest.mark.parametrize(
    "damage",
    [
        lambda d: (d / "config.json").unlink(),
        lambda d: (d / "tokenizer.json").write_text("{}"),
        lambda d: (d / "model-00002-of-00002.safetensors").unlink(),
        lambda d: (d / "model-00001-of-00002.safetensors").write_bytes(b"\xff" * 64),
        lambda d: (d / "config.json").write_text('{"architectures": ["MixtralForCausalLM"]}'),
    ],
)
def test_a_directory_that_cannot_be_loaded_breaks_the_engine_and_says_why(
    old: Path, new: Path, damage: Callable[[Path], object]
) -> None:
    damage(new)

    async def scenario() -> None:
        async with serving(old) as engine:
            with pytest.raises(EngineBroken, match="version 1 not loaded"):
                await engine.load(new, 1)
            assert engine.version is None
            await engine.load(old, 0)
            assert await engine.weights_digest() == digest_of(OLD)

    run(scenario)


@pytest.mark.parametrize(
    ("request_", "rule"),
    [
        (GenerationRequest(prompt=(), max_tokens=1), "at least one"),
        (GenerationRequest(prompt=(1,), max_tokens=0), "at least one"),
        (GenerationRequest(prompt=(1, 100_000), max_tokens=1), "must be in"),
        (GenerationRequest(prompt=(-1,), max_tokens=1), "must be in"),
        (GenerationRequest(prompt=(1,), max_tokens=8192), "context"),
        (GenerationRequest(prompt=(1,), max_tokens=1, temperature=-1.0), "temperature"),
        (GenerationRequest(prompt=(1,), max_tokens=1, temperature=float("nan")), "temperature"),
    ],
)
def test_a_request_that_cannot_run_is_refused(
    old: Path, request_: GenerationRequest, rule: str
) -> None:
    async def scenario() -> None:
        async with serving(old) as engine:
            with pytest.raises(RequestUnsupported, match=rule):
                async for _ in engine.generate(request_):
                    pass

    run(scenario)


def test_a_request_is_checked_against_the_model_that_will_run_it(old: Path, new: Path) -> None:
    """It may arrive while no model is there, and must not take the others down with it."""

    async def scenario() -> None:
        async with serving(old) as engine:
            await engine.pause()
            bad, good = (asyncio.create_task(complete(engine, (t,))) for t in (100_000, 5))
            await asyncio.sleep(0)
            await engine.load(new, 1)
            await engine.resume()
            with pytest.raises(RequestUnsupported, match="must be in"):
                await bad
            assert len(await good) == 8

    run(scenario)


def test_close_ends_requests_and_refuses_new_ones(old: Path) -> None:
    async def scenario() -> None:
        async with serving(old) as engine:
            await engine.pause()
            waiting = asyncio.create_task(complete(engine, (5,)))
            await asyncio.sleep(0)
            await engine.close()
            await engine.close()
            with pytest.raises(EngineError, match="closed"):
                await waiting
            with pytest.raises(EngineError, match="closed"):
                await complete(engine, (5,))
            with pytest.raises(EngineError, match="closed"):
                await engine.resume()

    run(scenario)


def test_text_round_trips_and_markers_are_one_token(old: Path) -> None:
    async def scenario() -> None:
        async with serving(old) as engine:
            assert engine.decode(engine.encode("Wörter, 123\n\t☃")) == "Wörter, 123\n\t☃"
            assert engine.encode("<|im_start|>a<|im_end|>")[0] == 1
            assert engine.decode(engine.encode("<|im_start|>a<|im_end|>")) == "a"

    run(scenario)
