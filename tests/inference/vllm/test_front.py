"""All ranks as one: whatever fails, and whoever goes away, they are one version or nameless."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from skerry.inference.engine import EngineBroken, GenerationRequest, InstallFailed
from skerry.inference.exchange import Exchange
from skerry.inference.placement.words import storage_words
from skerry.inference.vllm.core import Answer
from skerry.inference.vllm.front import Front
from tests.inference.checkpoints import digest_of, read_checkpoint
from tests.inference.placement.models import update, version_path
from tests.inference.vllm.ranks import RanksCore

REFUSED: Answer = {"ok": False, "broken": False, "error": "no memory"}
BROKEN: Answer = {"ok": False, "broken": True, "error": "the device is lost"}


def run(root: Path, body: Callable[[RanksCore, Front, Exchange], Awaitable[None]]) -> None:
    """Run `body` on two ranks that serve version 0, with version 1 staged."""

    async def main() -> None:
        core, exchange = RanksCore(root), Exchange.open(root / "exchange")
        front = Front(core, exchange)
        await front.load(version_path(root, 0), 0, "run-7")
        await front.stage(exchange.put(update(root, 0, 1)))
        await body(core, front, exchange)

    asyncio.run(main())


def versions(core: RanksCore) -> list[int | None]:
    return [rank.version for rank in core.members]


def test_the_label_moves_after_all_ranks_have(tmp_path: Path) -> None:
    async def body(core: RanksCore, front: Front, exchange: Exchange) -> None:
        assert (core.labelled, front.state().version, core.paused) == ("0", 0, False)
        await front.pause("keep", 60)
        await front.install(1)
        assert (versions(core), core.labelled, front.state().version) == ([1, 1], "1", 1)
        await front.resume()
        assert not core.paused
        assert all(not rank.compare(version_path(tmp_path, 1)) for rank in core.members)

    run(tmp_path, body)


@pytest.mark.parametrize("rank", [0, 1])
def test_one_rank_that_refuses_keeps_all_at_the_old_version(tmp_path: Path, rank: int) -> None:
    async def body(core: RanksCore, front: Front, exchange: Exchange) -> None:
        core.refusals[rank, "skerry_install"] = REFUSED
        await front.pause("keep", 60)
        with pytest.raises(InstallFailed, match=f"rank {rank}: no memory"):
            await front.install(1)
        await front.resume()
        assert (versions(core), core.labelled, front.state().version) == ([0, 0], "0", 0)
        assert all(not r.compare(version_path(tmp_path, 0)) for r in core.members)
        await front.stage(exchange.put(update(tmp_path, 0, 1)))  # and the next try succeeds
        await front.pause("keep", 60)
        await front.install(1)
        assert versions(core) == [1, 1]

    run(tmp_path, body)


@pytest.mark.parametrize("method", ["skerry_install", "skerry_undo"])
def test_a_rank_whose_weights_are_unknown_takes_the_name_from_all(
    tmp_path: Path, method: str
) -> None:
    async def body(core: RanksCore, front: Front, exchange: Exchange) -> None:
        core.refusals[1, "skerry_install"] = REFUSED
        core.refusals[1, method] = BROKEN
        await front.pause("keep", 60)
        with pytest.raises(EngineBroken, match="the device is lost"):
            await front.install(1)
        await front.resume()
        assert (core.labelled, front.state().version, core.paused) == ("unknown", None, False)
        with pytest.raises(EngineBroken):
            front.generate(GenerationRequest(prompt=(1,), max_tokens=1))
        await front.load(version_path(tmp_path, 1), 1, "")
        assert (versions(core), core.labelled, front.state().version) == ([1, 1], "1", 1)

    run(tmp_path, body)


def test_a_rank_that_does_not_go_back_takes_the_name_from_all(tmp_path: Path) -> None:
    """It has the new weights and the others the old ones, whatever it calls its refusal."""

    async def body(core: RanksCore, front: Front, exchange: Exchange) -> None:
        core.refusals[1, "skerry_install"] = core.refusals[0, "skerry_undo"] = REFUSED
        await front.pause("keep", 60)
        with pytest.raises(EngineBroken, match="no memory"):
            await front.install(1)
        assert (versions(core), core.labelled) == ([1, 0], "unknown")
        assert front.state().version is None

    run(tmp_path, body)


def test_what_encoders_computed_is_forgotten_before_the_label_moves(tmp_path: Path) -> None:
    """Their outputs are kept by the picture alone: no salt tells versions apart."""

    async def body(core: RanksCore, front: Front, exchange: Exchange) -> None:
        core.failing_forgets = 1
        await front.pause("keep", 60)
        with pytest.raises(InstallFailed, match="forgotten"):
            await front.install(1)
        assert (versions(core), core.labelled) == ([0, 0], "0")
        await front.stage(exchange.put(update(tmp_path, 0, 1)))
        await front.install(1)
        assert core.forgets == ["0", "0"]
        assert core.labelled == "1"

    run(tmp_path, body)


def test_a_version_that_comes_back_shares_no_prefix_with_what_it_was_before(
    tmp_path: Path,
) -> None:
    """Requests that ran across installs have cached under the old salt, by other weights."""

    async def body(core: RanksCore, front: Front, exchange: Exchange) -> None:
        core.permit(9)

        async def ask() -> None:
            request = GenerationRequest(prompt=(1,), max_tokens=1)
            assert [p.tokens async for p in front.generate(request)] == [[7]]

        await ask()
        for base, version in ((0, 1), (1, 0)):
            await front.stage(exchange.put(update(tmp_path, base, version)))
            await front.pause("keep", 60)
            await front.install(version)
            await front.resume()
        await ask()
        await front.load(version_path(tmp_path, 0), 0, "run-7")
        await ask()
        assert len(set(core.salts)) == len(core.salts) == 3
        assert all(salt.startswith("skerry-0-") for salt in core.salts)

    run(tmp_path, body)


def test_what_is_not_known_to_be_labelled_is_not_installed_and_the_old_label_is_put_back(
    tmp_path: Path,
) -> None:
    async def body(core: RanksCore, front: Front, exchange: Exchange) -> None:
        core.lost_labels = 1
        await front.pause("keep", 60)
        with pytest.raises(InstallFailed, match="label"):
            await front.install(1)
        assert (versions(core), core.labelled, front.state().version) == ([0, 0], "0", 0)

    run(tmp_path, body)


def test_an_engine_that_cannot_be_labelled_at_all_serves_nothing(tmp_path: Path) -> None:
    async def body(core: RanksCore, front: Front, exchange: Exchange) -> None:
        core.lost_labels = 2
        await front.pause("keep", 60)
        with pytest.raises(EngineBroken, match="label"):
            await front.install(1)
        assert (versions(core), core.labelled, front.state().version) == ([0, 0], "unknown", None)

    run(tmp_path, body)


def test_weights_are_not_written_outside_a_pause(tmp_path: Path) -> None:
    async def body(core: RanksCore, front: Front, exchange: Exchange) -> None:
        with pytest.raises(InstallFailed, match="pause"):
            await front.install(1)
        assert versions(core) == [0, 0]

    run(tmp_path, body)


def test_a_directory_that_cannot_be_loaded_leaves_a_nameless_engine_that_runs(
    tmp_path: Path,
) -> None:
    async def body(core: RanksCore, front: Front, exchange: Exchange) -> None:
        with pytest.raises(EngineBroken, match="nothing-here"):
            await front.load(tmp_path / "nothing-here", 1, "")
        assert (core.labelled, front.state().version, core.paused) == ("unknown", None, False)

    run(tmp_path, body)


def test_a_dead_engine_serves_nothing(tmp_path: Path) -> None:
    async def body(core: RanksCore, front: Front, exchange: Exchange) -> None:
        core.alive = False
        assert front.state().version is None
        with pytest.raises(EngineBroken, match="dead"):
            front.generate(GenerationRequest(prompt=(1,), max_tokens=1))

    run(tmp_path, body)


def test_ranks_that_hold_parts_are_read_back_together(tmp_path: Path) -> None:
    async def body(core: RanksCore, front: Front, exchange: Exchange) -> None:
        expected = digest_of(read_checkpoint(version_path(tmp_path, 0)))
        assert (await front.read_back())["digest"] == expected
        words = storage_words(core.members[1]._parameters()["down.weight"])
        words[0] ^= 1
        with pytest.raises(EngineBroken, match=r"rank 1: down\.weight"):
            await front.read_back()

    run(tmp_path, body)


def test_a_part_that_no_rank_holds_is_found_when_the_engine_loads(tmp_path: Path) -> None:
    async def body(core: RanksCore, front: Front, exchange: Exchange) -> None:
        core.members.pop()
        core.members.append(core.members[0])
        with pytest.raises(EngineBroken, match=r"24 words are in no rank"):
            await front.load(version_path(tmp_path, 0), 0, "")
        assert (core.labelled, front.state().version) == ("unknown", None)

    run(tmp_path, body)


def test_an_install_is_taken_back_in_all_ranks_until_somebody_resumes(tmp_path: Path) -> None:
    async def body(core: RanksCore, front: Front, exchange: Exchange) -> None:
        await front.pause("keep", 60)
        await front.install(1)
        install = front.state().install
        await front.undo(1)
        assert (versions(core), core.labelled, front.state().version) == ([0, 0], "0", 0)
        assert front.state().install != install  # nothing cached in between is found again
        assert all(not rank.compare(version_path(tmp_path, 0)) for rank in core.members)
        await front.resume()
        await front.stage(exchange.put(update(tmp_path, 0, 1)))
        await front.pause("keep", 60)
        await front.install(1)
        await front.resume()
        with pytest.raises(InstallFailed, match="cannot be undone"):
            await front.undo(1)
        assert (versions(core), core.labelled) == ([1, 1], "1")

    run(tmp_path, body)


def test_ranks_that_do_not_go_back_together_have_no_name(tmp_path: Path) -> None:
    async def body(core: RanksCore, front: Front, exchange: Exchange) -> None:
        await front.pause("keep", 60)
        await front.install(1)
        core.refusals[1, "skerry_undo"] = REFUSED
        with pytest.raises(EngineBroken, match="no memory"):
            await front.undo(1)
        assert (core.labelled, front.state().version) == ("unknown", None)
        await front.resume()
        assert not core.paused

    run(tmp_path, body)
