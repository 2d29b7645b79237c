"""What every engine promises, as a suite: subclass `EngineContract` and give it a `world`.

class TestMyEngine(EngineContract):
    @pytest.fixture
    def world(self, tmp_path: Path) -> EngineWorld:
        return EngineWorld(make=MyEngine, old=..., new=...)
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from skerry.codec.tensors import TensorChanges
from skerry.inference.engine import (
    Engine,
    EngineBroken,
    GeneratedToken,
    GenerationRequest,
    InstallFailed,
    RequestUnsupported,
    UndoableEngine,
    WeightUpdate,
)
from tests.inference.checkpoints import digest_of, read_checkpoint, update_between

OLD, NEW = 7, 8
Tokens = list[GeneratedToken]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineWorld:
    """A kind of engine, and two checkpoint directories of one structure that differ in words.

    `text` is something that the tokenizer gives back as it was.
    """

    make: Callable[[], Engine]
    old: Path
    new: Path
    text: str = "one two"

    @property
    def update(self) -> WeightUpdate:
        return update_between(OLD, read_checkpoint(self.old), NEW, read_checkpoint(self.new))


class EngineContract:
    """Every test gets an engine that serves the old checkpoint as version OLD."""

    @pytest.fixture
    def world(self, tmp_path: Path) -> EngineWorld:
        raise NotImplementedError

    def test_serves_nothing_before_load(self, world: EngineWorld) -> None:
        async def body() -> None:
            engine = world.make()
            try:
                assert engine.version is None
            finally:
                await engine.close()

        asyncio.run(body())

    def test_serves_bit_for_bit_what_it_loaded(self, world: EngineWorld) -> None:
        async def body(engine: Engine) -> None:
            assert engine.version == OLD
            assert await engine.weights_digest() == digest_of(read_checkpoint(world.old))

        _run(world, body)

    def test_a_directory_that_cannot_be_loaded_breaks_it(
        self, world: EngineWorld, tmp_path: Path
    ) -> None:
        async def body(engine: Engine) -> None:
            with pytest.raises(EngineBroken):
                await engine.load(tmp_path / "nothing-here", NEW)
            assert _version(engine) is None
            await engine.load(world.new, NEW)
            assert _version(engine) == NEW
            assert await engine.weights_digest() == world.update.digest

        _run(world, body)

    def test_text_survives_the_tokenizer(self, world: EngineWorld) -> None:
        async def body(engine: Engine) -> None:
            assert engine.decode(engine.encode(world.text)) == world.text

        _run(world, body)

    def test_makes_max_tokens_and_says_why_it_ends_on_the_last(self, world: EngineWorld) -> None:
        async def body(engine: Engine) -> None:
            tokens = await _generate(engine, world, max_tokens=5)
            assert [t.finish_reason for t in tokens] == [None] * 4 + ["length"]
            assert all(t.version == OLD and t.token >= 0 for t in tokens)
            assert all(math.isfinite(t.logprob) and t.logprob <= 1e-3 for t in tokens)

        _run(world, body)

    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_a_seed_repeats_itself(self, world: EngineWorld, temperature: float) -> None:
        async def body(engine: Engine) -> None:
            first, second = [
                await _generate(engine, world, temperature=temperature, seed=3) for _ in range(2)
            ]
            assert [t.token for t in first] == [t.token for t in second]

        _run(world, body)

    def test_staging_changes_nothing_that_is_served(self, world: EngineWorld) -> None:
        async def body(engine: Engine) -> None:
            before = await _generate(engine, world)
            await engine.stage(world.update)
            assert engine.version == OLD
            assert await engine.weights_digest() == digest_of(read_checkpoint(world.old))
            assert await _generate(engine, world) == before

        _run(world, body)

    def test_an_update_arrives_at_exactly_the_new_version(self, world: EngineWorld) -> None:
        async def body(engine: Engine) -> None:
            await _update(engine, world.update)
            assert engine.version == NEW
            assert await engine.weights_digest() == world.update.digest

        _run(world, body)

    def test_an_install_can_be_undone_until_the_engine_is_resumed(self, world: EngineWorld) -> None:
        async def body(engine: Engine) -> None:
            able, update = cast("UndoableEngine", engine), world.update
            before = await _generate(engine, world)
            for _ in range(2):
                await engine.stage(update)
                await engine.pause()
                await engine.install(update)
                await able.undo(update)
                assert engine.version == OLD
                with pytest.raises(InstallFailed):
                    await able.undo(update)
                await engine.resume()
                assert await engine.weights_digest() == digest_of(read_checkpoint(world.old))
                assert await _generate(engine, world) == before
            await _update(engine, update)
            with pytest.raises(InstallFailed):
                await able.undo(update)
            assert _version(engine) == NEW
            assert await engine.weights_digest() == update.digest

        _run(world, body)

    def test_no_prefix_of_the_old_version_is_seen_after_an_update(self, world: EngineWorld) -> None:
        async def body(engine: Engine) -> None:
            await _generate(engine, world)  # warms whatever keeps prefixes
            await _update(engine, world.update)
            updated = await _generate(engine, world)
            await engine.load(world.new, NEW)
            assert updated == await _generate(engine, world)

        _run(world, body)

    def test_a_running_request_gets_two_spans_in_order(self, world: EngineWorld) -> None:
        async def body(engine: Engine) -> None:
            tokens = _open(engine, world, max_tokens=4096)
            made = [await anext(tokens)]
            await _update(engine, world.update)
            while made[-1].version == OLD:  # those that were made before the pause
                made.append(await anext(tokens))
            made.append(await anext(tokens))
            await tokens.aclose()
            versions = [t.version for t in made]
            assert set(versions) == {OLD, NEW}
            assert versions == sorted(versions)

        _run(world, body)

    def test_an_update_for_another_base_is_refused_before_the_pause(
        self, world: EngineWorld
    ) -> None:
        def forged(change: TensorChanges) -> TensorChanges:
            return dataclasses.replace(change, old=change.new, new=change.old)

        def renamed(change: TensorChanges) -> TensorChanges:
            return dataclasses.replace(
                change, spec=dataclasses.replace(change.spec, name="no.such.tensor")
            )

        def beyond(change: TensorChanges) -> TensorChanges:
            positions = change.positions.copy()
            positions[-1] = change.spec.words
            return dataclasses.replace(change, positions=positions)

        def retyped(change: TensorChanges) -> TensorChanges:
            spec = dataclasses.replace(change.spec, shape=(1, *change.spec.shape))
            return dataclasses.replace(change, spec=spec)

        async def body(engine: Engine) -> None:
            update = world.update
            for wrong in (forged, renamed, beyond, retyped):
                changes = (*update.changes[:-1], wrong(update.changes[-1]))
                with pytest.raises(InstallFailed):
                    await engine.stage(dataclasses.replace(update, changes=changes))
            with pytest.raises(InstallFailed):
                await engine.stage(dataclasses.replace(update, base=OLD + 1, version=OLD + 2))
            assert engine.version == OLD
            assert await engine.weights_digest() == digest_of(read_checkpoint(world.old))
            await _update(engine, update)  # a refusal leaves nothing behind
            assert await engine.weights_digest() == update.digest

        _run(world, body)

    def test_what_was_not_staged_is_not_installed(self, world: EngineWorld) -> None:
        async def body(engine: Engine) -> None:
            await engine.pause()
            with pytest.raises(InstallFailed):
                await engine.install(world.update)
            await engine.resume()
            assert engine.version == OLD
            assert await engine.weights_digest() == digest_of(read_checkpoint(world.old))
            assert await _generate(engine, world)

        _run(world, body)

    def test_resume_may_be_called_whenever(self, world: EngineWorld) -> None:
        async def body(engine: Engine) -> None:
            await engine.resume()
            await engine.pause()
            await engine.resume()
            await engine.resume()
            assert len(await _generate(engine, world, max_tokens=3)) == 3

        _run(world, body)

    def test_closing_the_iterator_cancels_the_request(self, world: EngineWorld) -> None:
        async def body(engine: Engine) -> None:
            tokens = _open(engine, world, max_tokens=4096)
            await anext(tokens)
            await tokens.aclose()
            with pytest.raises(StopAsyncIteration):
                await anext(tokens)
            await _update(engine, world.update)
            assert len(await _generate(engine, world, max_tokens=3)) == 3

        _run(world, body)

    def test_a_request_can_be_cancelled_while_paused(self, world: EngineWorld) -> None:
        async def body(engine: Engine) -> None:
            tokens = _open(engine, world, max_tokens=4096)
            await anext(tokens)
            await engine.pause()
            await tokens.aclose()
            await engine.resume()
            assert len(await _generate(engine, world, max_tokens=3)) == 3

        _run(world, body)

    def test_a_cancelled_reader_cancels_the_request(self, world: EngineWorld) -> None:
        async def body(engine: Engine) -> None:
            began = asyncio.Event()

            async def read() -> None:
                async for _ in _open(engine, world, max_tokens=4096):
                    began.set()

            reading = asyncio.create_task(read())
            await began.wait()
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            assert len(await _generate(engine, world, max_tokens=3)) == 3

        _run(world, body)

    def test_requests_side_by_side_do_not_disturb_each_other(self, world: EngineWorld) -> None:
        async def body(engine: Engine) -> None:
            alone = await _generate(engine, world)
            together = await asyncio.gather(*(_generate(engine, world) for _ in range(3)))
            assert all([t.token for t in one] == [t.token for t in alone] for one in together)

        _run(world, body)

    def test_a_request_that_the_model_cannot_run_is_refused_before_its_first_token(
        self, world: EngineWorld
    ) -> None:
        async def body(engine: Engine) -> None:
            for prompt, max_tokens in (((), 1), ((1,), 0), ((1, 2**31 - 1), 1), ((1,), 2**31)):
                request = GenerationRequest(prompt=prompt, max_tokens=max_tokens)
                with pytest.raises(RequestUnsupported):
                    await anext(engine.generate(request))
            assert engine.version == OLD
            assert len(await _generate(engine, world, max_tokens=3)) == 3

        _run(world, body)

    def test_texts_can_be_encoded_in_threads_side_by_side(self, world: EngineWorld) -> None:
        async def body(engine: Engine) -> None:
            expected = engine.encode(world.text)
            found = await asyncio.gather(
                *(asyncio.to_thread(engine.encode, world.text) for _ in range(8))
            )
            assert found == [expected] * 8

        _run(world, body)

    def test_the_two_versions_can_be_told_apart(self, world: EngineWorld) -> None:
        """A check of the world itself: tests above prove little if the versions act alike."""
        assert world.update.changes
        assert all(np.any(change.old != change.new) for change in world.update.changes)


def _run(world: EngineWorld, body: Callable[[Engine], Awaitable[None]]) -> None:
    async def main() -> None:
        async with _loaded(world) as engine:
            await body(engine)

    asyncio.run(main())


@asynccontextmanager
async def _loaded(world: EngineWorld) -> AsyncGenerator[Engine, None]:
    engine = world.make()
    try:
        await engine.load(world.old, OLD)
        yield engine
    finally:
        await engine.close()


def _version(engine: Engine) -> int | None:
    return engine.version  # read anew: type checkers take a property for a constant


async def _update(engine: Engine, update: WeightUpdate) -> None:
    await engine.stage(update)
    await engine.pause()
    try:
        await engine.install(update)
    finally:
        await engine.resume()


def _open(
    engine: Engine,
    world: EngineWorld,
    *,
    max_tokens: int = 6,
    temperature: float = 0.0,
    seed: int | None = None,
) -> AsyncGenerator[GeneratedToken, None]:
    request = GenerationRequest(
        prompt=engine.encode(world.text),
        max_tokens=max_tokens,
        temperature=temperature,
        seed=seed,
        ignore_eos=True,
    )
    return engine.generate(request)


async def _generate(
    engine: Engine,
    world: EngineWorld,
    *,
    max_tokens: int = 6,
    temperature: float = 0.0,
    seed: int | None = None,
) -> Tokens:
    tokens = _open(engine, world, max_tokens=max_tokens, temperature=temperature, seed=seed)
    return [token async for token in tokens]
