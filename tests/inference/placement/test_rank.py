"""One process's weights: exactly one version or none, whatever is asked of them in which order."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from skerry.inference.engine import EngineBroken, InstallFailed
from skerry.inference.engines.scatter import Located, replace
from skerry.inference.placement import staged
from skerry.inference.placement.checkpoint import MappedCheckpoint
from skerry.inference.placement.words import storage_words
from tests.inference.checkpoints import digest_of, read_checkpoint, write_checkpoint
from tests.inference.placement.models import Model, make_rank, parameters, update, version_path


def bits(model: Model) -> dict[str, bytes]:
    return {n: storage_words(t).numpy().tobytes() for n, t in parameters(model).items()}


def expected(root: Path, version: int, *, rank: int = 0, ranks: int = 1) -> dict[str, bytes]:
    """Return the bits of a model that was loaded from a version's directory and nothing else."""
    model, loaded = make_rank(root, rank=rank, ranks=ranks)
    loaded.load(version_path(root, version), version)
    return bits(model)


def test_every_parameter_is_of_the_kind_that_its_loader_makes_it(tmp_path: Path) -> None:
    _, rank = make_rank(tmp_path)
    assert rank.placement.kinds() == {"direct": 3, "permuted": 1, "derived": 1}
    assert list(rank.placement.derived) == ["scaled.weight"]
    assert rank.placement.sources({"scaled"}) == {"scaled.weight", "scaled.scale"}
    assert rank.reads_mirror  # of the derived ones, and of what nothing reads


@pytest.mark.parametrize(("rank", "ranks"), [(0, 1), (0, 2), (1, 2), (2, 3)])
def test_ten_updates_end_at_the_bits_of_the_last_version(
    tmp_path: Path, rank: int, ranks: int
) -> None:
    model, served = make_rank(tmp_path, rank=rank, ranks=ranks)
    served.load(version_path(tmp_path, 0), 0)
    for version in range(1, 11):
        served.stage(update(tmp_path, version - 1, version))
        served.install(version)
        assert bits(model) == expected(tmp_path, version, rank=rank, ranks=ranks)
    assert served.version == 10


def test_what_is_read_back_hashes_to_the_version(tmp_path: Path) -> None:
    _, rank = make_rank(tmp_path)
    rank.load(version_path(tmp_path, 0), 0)
    for version in (1, 2):
        rank.stage(update(tmp_path, version - 1, version))
        rank.install(version)
        rank.load(version_path(tmp_path, version), version)
        found = rank.read_back()
        assert found.digest == digest_of(read_checkpoint(version_path(tmp_path, version)))
        # These are not in the parameters, and the report does not claim that they are.
        assert found.from_mirror == ("scaled.weight", "scaled.scale", "unread.weight")


def test_one_wrong_bit_in_a_parameter_changes_what_is_read_back(tmp_path: Path) -> None:
    model, rank = make_rank(tmp_path)
    rank.load(version_path(tmp_path, 0), 0)
    good = rank.read_back().digest
    for name in ("qk.weight", "down.weight", "packed.weight", "router.weight"):
        words = storage_words(parameters(model)[name])
        words[-1] ^= 1
        assert rank.read_back().digest != good
        assert set(rank.compare(version_path(tmp_path, 0))) == {name}
        words[-1] ^= 1
    assert rank.compare(version_path(tmp_path, 0)) == {}


def test_an_undo_leads_back_bit_for_bit(tmp_path: Path) -> None:
    model, rank = make_rank(tmp_path)
    rank.load(version_path(tmp_path, 0), 0)
    before = bits(model)
    rank.stage(update(tmp_path, 0, 1))
    rank.install(1)
    rank.undo(1)
    assert (bits(model), rank.version) == (before, 0)
    rank.undo(1)  # nothing left to do
    assert (bits(model), rank.version) == (before, 0)


def test_words_that_were_not_written_and_cannot_be_taken_back_leave_no_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that fails puts back what was there before it: here, the bits that should go."""
    _, rank = make_rank(tmp_path)
    rank.load(version_path(tmp_path, 0), 0)
    rank.stage(update(tmp_path, 0, 1))

    def write(located: Sequence[Located], *, prepared: Callable[[], None] | None = None) -> None:
        if prepared is None:  # the way back
            raise InstallFailed("nothing was installed: no memory")
        replace(located, prepared=prepared)

    monkeypatch.setattr(staged, "replace", write)
    monkeypatch.setattr(staged.Staged, "holds", lambda _: False)
    with pytest.raises(EngineBroken, match="could not be put back"):
        rank.install(1)
    assert rank.version is None


def test_a_tensor_that_nothing_reads_is_named_and_not_dropped_in_silence(tmp_path: Path) -> None:
    _, rank = make_rank(tmp_path)
    rank.load(version_path(tmp_path, 0), 0)
    report = rank.stage(update(tmp_path, 0, 1))
    assert report.unread == ("unread.weight",)
    assert list(report.derived) == ["scaled.weight"]


def test_a_part_that_nothing_reads_is_refused_where_no_other_rank_could_read_it(
    tmp_path: Path,
) -> None:
    _, rank = make_rank(tmp_path, rank=0, ranks=2)
    rank.load(version_path(tmp_path, 0), 0)
    rank._alone = True
    with pytest.raises(InstallFailed, match="nowhere in the engine"):
        rank.stage(update(tmp_path, 0, 1))


@pytest.mark.parametrize("tensor", ["q.weight", "packed.weight", "router.bias"])
def test_other_old_bits_than_the_served_ones_are_refused_before_anything_is_written(
    tmp_path: Path, tensor: str
) -> None:
    model, rank = make_rank(tmp_path)
    rank.load(version_path(tmp_path, 0), 0)
    before, sound = bits(model), update(tmp_path, 0, 1)
    changes = [
        dataclasses.replace(c, old=c.old ^ np.asarray(1, c.old.dtype))
        if c.spec.name == tensor
        else c
        for c in sound.changes
    ]
    with pytest.raises(InstallFailed, match="old bits"):
        rank.stage(dataclasses.replace(sound, changes=changes))
    with pytest.raises(InstallFailed, match="not staged"):
        rank.install(1)
    assert (bits(model), rank.version) == (before, 0)


def test_an_update_for_another_base_is_refused(tmp_path: Path) -> None:
    _, rank = make_rank(tmp_path)
    with pytest.raises(InstallFailed, match="base 0, found None"):
        rank.stage(update(tmp_path, 0, 1))
    rank.load(version_path(tmp_path, 0), 0)
    with pytest.raises(InstallFailed, match="base 1, found 0"):
        rank.stage(update(tmp_path, 1, 2))


def test_a_checkpoint_of_another_structure_breaks_the_rank_and_says_what_differs(
    tmp_path: Path,
) -> None:
    model, rank = make_rank(tmp_path)
    rank.load(version_path(tmp_path, 0), 0)
    before = bits(model)
    write_checkpoint(tmp_path / "other", {"q.weight": ("BF16", (2,), b"1234")})
    with pytest.raises(EngineBroken, match=r"down\.weight is gone"):
        rank.load(tmp_path / "other", 1)
    assert rank.version is None
    assert bits(model) == before  # refused before a bit was written
    rank.load(version_path(tmp_path, 1), 1)
    assert rank.version == 1


def test_modules_that_cannot_be_made_anew_leave_a_rank_that_says_so(tmp_path: Path) -> None:
    model, rank = make_rank(tmp_path)
    rank.load(version_path(tmp_path, 0), 0)
    rank.stage(update(tmp_path, 0, 1))

    def fail(tensors: object) -> None:
        raise RuntimeError("out of memory")

    rank._reload_modules = fail
    with pytest.raises(EngineBroken, match="out of memory"):
        rank.install(1)
    assert rank.version is None
    rank._reload_modules = model.reload
    rank.load(version_path(tmp_path, 1), 1)
    assert bits(model) == expected(tmp_path, 1)


def test_a_parameter_that_is_repacked_in_secret_is_found_out(tmp_path: Path) -> None:
    """The permutation is forgotten: equal shapes must not be taken for equal places."""
    _, rank = make_rank(tmp_path)
    placement = rank.placement
    placement.permutations = {}
    model, _ = make_rank(tmp_path)
    placement.prove(
        parameters(model), MappedCheckpoint.open(version_path(tmp_path, 0)), {"qk.weight": "copied"}
    )
    assert placement.derived == {
        "scaled.weight": "it is computed from scaled.scale, scaled.weight",
        "packed.weight": "its bits are not the checkpoint's",
        "qk.weight": "copied",
    }
