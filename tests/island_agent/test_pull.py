"""One version as a plain directory."""

from __future__ import annotations

import fcntl
import shutil
from pathlib import Path

import pytest

from skerry.bulletin.errors import StoreUnavailable, VersionUnknown
from skerry.bulletin.log import BulletinReader
from skerry.island_agent.errors import MirrorBusy, ObjectUnavailable, PullRefused
from skerry.island_agent.fetch import FetchConfig
from skerry.island_agent.pull import pull, verify_directory
from tests.island_agent.disks import small_disk
from tests.island_agent.runs import assert_is, make_run, random_snapshot
from tests.island_agent.stores import TwistedStore

FETCH = FetchConfig(attempts=1, backoff_s=0.0)


@pytest.mark.parametrize("version", [None, 0, 2])
def test_a_version_is_rebuilt_byte_for_byte_and_nothing_else_is_left(
    tmp_path: Path, version: int | None
) -> None:
    run = make_run(3)
    seen: list[tuple[int, int]] = []
    found = pull(
        run.reader(),
        tmp_path / "out",
        version,
        progress=lambda done, total: seen.append((done, total)),
    )
    expected = 3 if version is None else version
    assert found.version == expected
    assert_is(tmp_path / "out", run.versions[expected])
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1]


@pytest.mark.parametrize("threads", [1, 3])
def test_what_is_pulled_does_not_depend_on_threads(tmp_path: Path, threads: int) -> None:
    run = make_run(3)
    pull(run.reader(), tmp_path / "out", threads=threads)
    assert_is(tmp_path / "out", run.versions[3])


def test_a_version_with_side_files_in_directories_is_rebuilt(tmp_path: Path) -> None:
    run = make_run()
    changed = run.versions[0].with_file("tokenizer/vocab.txt", None).with_file("a/b/c", b"deep")
    run.publish(changed)
    pull(run.reader(), tmp_path / "out")
    assert_is(tmp_path / "out", run.versions[1])


def test_a_directory_that_is_identical_is_left_alone(tmp_path: Path) -> None:
    run = make_run(1)
    run.versions[1].write(tmp_path / "out")
    store = TwistedStore(run.store)
    assert pull(BulletinReader(store), tmp_path / "out").version == 1
    assert store.ranges == []


def test_a_directory_with_anything_else_is_refused_and_kept(tmp_path: Path) -> None:
    run = make_run(1)
    run.versions[0].write(tmp_path / "out")
    with pytest.raises(PullRefused, match="not empty and not version 1"):
        pull(run.reader(), tmp_path / "out")
    assert_is(tmp_path / "out", run.versions[0])
    (tmp_path / "file").write_bytes(b"mine")
    with pytest.raises(PullRefused, match="expected a directory or nothing"):
        pull(run.reader(), tmp_path / "file")


def test_a_pull_that_was_cut_off_goes_on_where_it_stopped(tmp_path: Path) -> None:
    run = make_run(1)
    store = TwistedStore(run.store)

    def lost(key: str, start: int, data: bytes) -> bytes:
        if len(store.ranges) > 8:
            raise StoreUnavailable(key, "no answer")
        return data

    store.on_range = lost
    with pytest.raises(ObjectUnavailable):
        pull(BulletinReader(store), tmp_path / "out", config=FETCH)
    assert not (tmp_path / "out").exists()
    before = sum(stop - start for _, start, stop in store.ranges)
    store.on_range = None
    store.ranges.clear()
    pull(BulletinReader(store), tmp_path / "out", config=FETCH)
    after = sum(stop - start for _, start, stop in store.ranges)
    assert 0 < after < run.versions[1].layout.nbytes
    assert before > 0
    assert_is(tmp_path / "out", run.versions[1])


def test_two_pulls_into_one_directory_do_not_mix(tmp_path: Path) -> None:
    run = make_run()
    store = TwistedStore(run.store)

    def again(key: str, start: int, data: bytes) -> bytes:
        store.on_range = None
        with pytest.raises(MirrorBusy):
            pull(run.reader(), tmp_path / "out")
        return data

    store.on_range = again
    pull(BulletinReader(store), tmp_path / "out")
    assert_is(tmp_path / "out", run.versions[0])


def test_a_version_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(VersionUnknown, match="version 7"):
        pull(make_run().reader(), tmp_path / "out", 7)


def test_a_change_of_structure_is_pulled(tmp_path: Path) -> None:
    run = make_run(1)
    run.publish(random_snapshot(seed=3, words=800))
    pull(run.reader(), tmp_path / "out")
    assert_is(tmp_path / "out", run.versions[2])


def test_an_identical_directory_is_said_to_be_identical(tmp_path: Path) -> None:
    run = make_run(2)
    run.versions[1].write(tmp_path)
    report = verify_directory(run.reader(), tmp_path, 1)
    assert report.identical
    assert report.found == report.expected == run.versions[1].weights


def test_each_file_and_tensor_that_differs_is_named(tmp_path: Path) -> None:
    run = make_run()
    run.publish(run.versions[0].with_words("norm", {3: 1}).with_words("embed", {0: 1}))
    run.versions[1].with_words("norm", {3: 2}).with_words("head", {1: 7}).with_file(
        "config.json", b'{"model_type": "tset"}'
    ).write(tmp_path / "out")
    report = verify_directory(run.reader(), tmp_path / "out", 1)
    assert report.differences[:2] == (
        "config.json: content differs",
        "model-00003-of-00003.safetensors: tensor norm differs",
    )
    assert report.differences[2].startswith("weights: tensors that no manifest names differ")
    deep = verify_directory(run.reader(), tmp_path / "out", 1, scratch=tmp_path / "scratch")
    assert deep.differences == (
        "config.json: content differs",
        "model-00003-of-00003.safetensors: tensor head differs",
        "model-00003-of-00003.safetensors: tensor norm differs",
    )


def test_a_tensor_that_no_manifest_names_is_found_by_rebuilding(tmp_path: Path) -> None:
    run = make_run()
    run.versions[0].with_words("head", {1: 7}).write(tmp_path / "out")
    plain = verify_directory(run.reader(), tmp_path / "out")
    assert plain.differences == (
        f"weights: tensors that no manifest names differ, expected digest {plain.expected}",
    )
    deep = verify_directory(run.reader(), tmp_path / "out", scratch=tmp_path / "scratch")
    assert deep.differences == ("model-00003-of-00003.safetensors: tensor head differs",)


@pytest.mark.parametrize("name", ["model-00002-of-00003.safetensors", "config.json"])
def test_missing_and_extra_files_are_named(tmp_path: Path, name: str) -> None:
    run = make_run()
    run.versions[0].with_file(name, None).with_file("extra", b"?").write(tmp_path)
    report = verify_directory(run.reader(), tmp_path)
    assert f"{name}: missing" in report.differences
    assert "extra: unexpected file" in report.differences


def test_a_pull_that_locked_what_another_one_removed_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run()
    lock = fcntl.flock

    def removed_first(fd: int, operation: int) -> None:
        shutil.rmtree(tmp_path / ".out.pulling")
        lock(fd, operation)

    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "flock", removed_first)
        with pytest.raises(MirrorBusy, match="ended just now"):
            pull(run.reader(), tmp_path / "out")
    pull(run.reader(), tmp_path / "out")
    assert_is(tmp_path / "out", run.versions[0])


def test_what_lies_in_the_scratch_directory_stays(tmp_path: Path) -> None:
    run = make_run()
    run.versions[0].write(tmp_path / "scratch" / "version-0")
    run.versions[0].with_words("head", {1: 7}).write(tmp_path / "out")
    verify_directory(run.reader(), tmp_path / "out", scratch=tmp_path / "scratch")
    assert_is(tmp_path / "scratch" / "version-0", run.versions[0])


def test_a_mount_point_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    run = make_run()
    store = TwistedStore(run.store)
    with small_disk(tmp_path / "disk") as disk:
        with pytest.raises(PullRefused, match="mount point"):
            pull(BulletinReader(store), disk.path)
        assert not [key for key, _, _ in store.ranges if key.startswith("full/")]
        assert list(tmp_path.iterdir()) == [disk.path]
        pull(run.reader(), disk.path / "out")
        assert_is(disk.path / "out", run.versions[0])


@pytest.mark.parametrize("name", [".", "", "../here"])
def test_a_directory_is_pulled_into_whatever_it_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    run = make_run()
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    pull(run.reader(), Path(name))
    assert_is(tmp_path / "here", run.versions[0])
    assert list(tmp_path.iterdir()) == [tmp_path / "here"]
