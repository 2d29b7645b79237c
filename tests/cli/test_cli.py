"""The command line: what it prints, and which exit code each outcome has."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from skerry.bulletin.manifest import Manifest
from skerry.bulletin.records import Commit
from skerry.bulletin.stores import open_store
from skerry.bulletin.writer import BulletinWriter
from skerry.cli.app import app
from skerry.cli.options import open_reader
from skerry.codec.digest import digest_bytes
from skerry.codec.layout import Layout
from skerry.codec.tensors import TensorStat
from tests.publisher.samples import (
    Sample,
    edit_side_files,
    edit_structure,
    edit_weights,
    make,
    read_tree,
)

COMMANDS = (
    "publish", "log", "show", "pull", "verify", "diff", "apply", "agent", "keygen", "info",
    "rotate", "doctor", "gc", "compact", "serve", "top",
)  # fmt: skip


def skerry(*arguments: object) -> Result:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def answer(*arguments: object) -> dict[str, Any]:
    result = skerry(*arguments, "--json")
    assert result.exit_code == 0, result.output
    (line,) = result.stdout.splitlines()
    value: dict[str, Any] = json.loads(line)
    return value


def refusal(exit_code: int, *arguments: object) -> str:
    """Return the one line on standard error."""
    result = skerry(*arguments)
    assert result.exit_code == exit_code, result.output
    assert "Traceback" not in result.output
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert "who acts: " in line
    return line


@pytest.fixture
def samples() -> list[Sample]:
    first = make(1, sharded=True)
    second = edit_weights(first, 1)
    return [first, second, edit_side_files(second, 2)]


@pytest.fixture
def run(tmp_path: Path, samples: list[Sample]) -> Path:
    """A bulletin with three versions; the checkpoints are beside it, named v0, v1, v2."""
    bulletin = tmp_path / "bulletin"
    for number, sample in enumerate(samples):
        directory = sample.write(tmp_path / f"v{number}")
        answer("publish", bulletin, directory, "--step", 10 * number)
    return bulletin


def test_publish_then_pull_is_the_identity(run: Path, samples: list[Sample]) -> None:
    for version, sample in enumerate(samples):
        target = run.parent / f"pulled-{version}"
        assert answer("pull", run, target, "--version", version)["version"] == version
        assert read_tree(target) == sample.files()
        found = answer("verify", run, target, "--version", version)
        assert (found["identical"], found["differences"]) == (True, [])


def test_publish_says_what_it_did(tmp_path: Path, samples: list[Sample]) -> None:
    directory = samples[0].write(tmp_path / "v0")
    first = answer("publish", tmp_path / "bulletin", directory)
    assert (first["version"], first["kind"], first["reason"]) == (0, "full", "first version")
    directory = samples[1].write(tmp_path / "v1")
    second = answer("publish", tmp_path / "bulletin", directory, "--full")
    assert (second["version"], second["kind"], second["reason"]) == (1, "full", "forced")
    assert second["share"] == second["changed"] / second["elements"]
    text = skerry("publish", tmp_path / "bulletin", directory).stdout
    assert "patch (nothing changed)" in text
    assert f"0 / {second['elements']:,} = 0.00e+00" in text


def test_publish_with_a_state_directory_gives_the_same_versions(
    tmp_path: Path, run: Path, samples: list[Sample]
) -> None:
    other, state = tmp_path / "other", tmp_path / "state"
    for number in range(3):
        answer("publish", other, tmp_path / f"v{number}", "--state", state)
    assert [answer("show", run, v)["result"] for v in range(3)] == [
        answer("show", other, v)["result"] for v in range(3)
    ]


def test_a_rollback_is_published_with_its_parent(tmp_path: Path, run: Path) -> None:
    report = answer("publish", run, tmp_path / "v1", "--parent", 1)
    assert (report["version"], report["parent"], report["changed"]) == (3, 1, 0)
    assert answer("show", run, 2)["state"] == "abandoned"


def test_log_lists_every_record(run: Path) -> None:
    records = answer("log", run)["records"]
    assert [r["kind"] for r in records] == ["fence", "commit"] * 3
    text = skerry("log", run).stdout
    assert len(text.splitlines()) == 7
    assert "full" in text


def test_show_gives_share_and_every_size(run: Path, samples: list[Sample]) -> None:
    shown = answer("show", run, 1, "--tensors")
    assert shown["share"] == shown["changed"] / shown["elements"]
    assert shown["full_bytes"] == sum(map(len, samples[1].files().values()))
    assert sum(t["changed"] for t in shown["tensors"]) == shown["changed"]
    total = shown["patch_bytes"] + shown["record_bytes"]
    assert shown["bytes_per_changed"] == total / shown["changed"]
    assert answer("show", run)["version"] == answer("show", run, "latest")["version"] == 2
    assert answer("show", run)["side_files_changed"] == ["config.json", "extra/deep/2.txt"]
    assert "layer." in skerry("show", run, 1, "--tensors").stdout


def test_verify_finds_a_directory_that_differs(run: Path, tmp_path: Path) -> None:
    result = skerry("verify", run, tmp_path / "v0", "--version", 1, "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["differences"]
    (tmp_path / "v1" / "config.json").write_bytes(b"{}")
    result = skerry("verify", run, tmp_path / "v1", "--version", 1)
    assert result.exit_code == 1
    assert "config.json" in result.stdout


def test_verify_walks_a_sound_bulletin(run: Path) -> None:
    for deep in ([], ["--deep"]):
        found = answer("verify", run, *deep)
        assert (found["versions"], found["identical"]) == (3, True)


def a_pack(run: Path) -> Path:
    commit = open_reader(str(run)).state.commits[1]
    return run / commit.packs[0].key


def test_verify_names_an_object_that_is_missing_or_rotten(run: Path) -> None:
    pack = a_pack(run)
    data = pack.read_bytes()
    pack.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert skerry("verify", run).exit_code == 0
    result = skerry("verify", run, "--deep")
    assert result.exit_code == 1
    assert f"packs/{pack.parent.name}/{pack.name}" in result.stdout
    pack.write_bytes(data[:-1])
    assert "bytes, found" in skerry("verify", run).stdout
    pack.unlink()
    result = skerry("verify", run)
    assert result.exit_code == 1
    assert "missing" in result.stdout


def test_a_log_that_was_tampered_with_is_refused(run: Path) -> None:
    record = run / "log" / f"{1:020}.json"
    record.write_bytes(record.read_bytes().replace(b'"step":0', b'"step":1'))
    for command in ("log", "show", "verify"):
        line = refusal(1, command, run)
        assert "log/" in line


def test_keys_sign_and_pin_a_run(tmp_path: Path, samples: list[Sample]) -> None:
    directory, bulletin = samples[0].write(tmp_path / "v0"), tmp_path / "bulletin"
    made = answer("keygen", tmp_path / "run.key")
    other = answer("keygen", tmp_path / "other.key")
    assert (tmp_path / "run.key").stat().st_mode & 0o777 == 0o600
    answer("publish", bulletin, directory, "--sign", tmp_path / "run.key")
    assert "KeyMismatch" in refusal(1, "publish", bulletin, directory)
    wrong = ("publish", bulletin, directory, "--sign", tmp_path / "other.key")
    assert "KeyMismatch" in refusal(1, *wrong)
    assert answer("log", bulletin, "--key", made["key"])["key"] == made["key"]
    assert answer("show", bulletin, "--key", tmp_path / "run.key.pub")["signed"] is True
    assert "UntrustedKey" in refusal(1, "verify", bulletin, "--key", other["key"])
    assert "KeyFileInvalid" in refusal(2, "keygen", tmp_path / "run.key")


LEVELS = ("auto", "fast", "default", "max")


@pytest.mark.parametrize("level", LEVELS)
def test_level_and_kernel_are_told_and_threads_change_nothing(
    tmp_path: Path, samples: list[Sample], level: str
) -> None:
    kernel = answer("info")["kernel"]
    expected = "default" if level == "auto" else level
    bulletin, v0, v1 = tmp_path / "bulletin", tmp_path / "v0", tmp_path / "v1"
    samples[0].write(v0)
    samples[1].write(v1)
    for threads, directory in ((1, v0), (3, v1)):
        report = answer("publish", bulletin, directory, "--level", level, "--threads", threads)
        assert report["kernel"] == kernel
    assert report["level"] == expected
    assert (report["level_reason"] == "stated") == (level != "auto")
    patches = set()
    for threads in (1, 3):
        patch, copy = tmp_path / f"{threads}.patch", tmp_path / f"copy-{threads}"
        summary = answer("diff", v0, v1, "-o", patch, "--level", level, "--threads", threads)
        assert (summary["level"], summary["kernel"]) == (expected, kernel)
        patches.add(patch.read_bytes())
        samples[0].write(copy)
        answer("apply", copy, patch, "--threads", threads)
        target = tmp_path / f"pulled-{threads}"
        answer("pull", bulletin, target, "--threads", threads)
        assert read_tree(copy) == read_tree(target) == samples[1].files()
        assert answer("verify", bulletin, "--deep", "--threads", threads)["identical"]
    assert len(patches) == 1


def test_a_stated_link_decides_an_automatic_level(tmp_path: Path, run: Path) -> None:
    v0, v1, patch = tmp_path / "v0", tmp_path / "v1", tmp_path / "x.patch"
    for mbit, level in ((0.01, "default"), (1e7, "fast")):
        made = answer("diff", v0, v1, "-o", patch, "--level", "auto", "--link-mbit", mbit)
        assert made["level"] == level
        assert "Mbit/s, stated" in made["level_reason"]
    report = answer("publish", run, v1, "--link-mbit", 1e7)
    assert report["level"] == "fast"
    text = skerry("diff", v0, v1, "-o", patch).stdout
    assert "default (stated)" in text


def test_diff_then_apply_is_the_identity(tmp_path: Path, run: Path, samples: list[Sample]) -> None:
    patch = tmp_path / "v0-v2.patch"
    summary = answer("diff", tmp_path / "v0", tmp_path / "v2", "-o", patch)
    assert summary["side_files"] == 2
    assert answer("apply", tmp_path / "v0", patch)["applied"] is True
    assert read_tree(tmp_path / "v0") == samples[2].files()
    assert answer("apply", tmp_path / "v0", patch)["applied"] is False
    assert "BaseMismatch" in refusal(1, "apply", tmp_path / "v1", patch)
    assert read_tree(tmp_path / "v1") == samples[1].files()
    patch.write_bytes(patch.read_bytes()[:-1])
    assert "FormatError" in refusal(1, "apply", tmp_path / "v1", patch)
    edit_structure(samples[0], 0).write(tmp_path / "other")
    line = refusal(1, "diff", tmp_path / "v0", tmp_path / "other", "-o", patch)
    assert "StructureMismatch" in line


def test_an_unsound_checkpoint_is_refused_by_name(tmp_path: Path, samples: list[Sample]) -> None:
    directory = samples[0].write(tmp_path / "v0")
    (directory / "model-00002-of-00002.safetensors").unlink()
    line = refusal(1, "publish", tmp_path / "bulletin", directory)
    assert "model-00002-of-00002.safetensors" in line
    assert not (tmp_path / "bulletin").exists()


def test_wrong_usage_has_exit_code_two(tmp_path: Path, run: Path) -> None:
    for arguments in (
        ["publish", run, tmp_path / "nowhere"],
        ["show", run, "seven"],
        ["pull", run, tmp_path / "x", "--version", "-1"],
        ["log", run, "--key", "nonsense"],
        ["verify", run, "--version", "1"],
        ["publish", run, tmp_path / "v0", "--level", "best"],
        ["publish", run, tmp_path / "v0", "--link-mbit", "0"],
        ["pull", run, tmp_path / "x", "--threads", "0"],
        ["frobnicate"],
    ):
        assert skerry(*arguments).exit_code == 2
    assert "UnsupportedStore" in refusal(2, "log", "ftp://host/run")


def test_refusals_have_exit_code_one(tmp_path: Path, run: Path) -> None:
    assert "no log" in refusal(1, "log", tmp_path / "nowhere")
    assert "VersionUnknown" in refusal(1, "show", run, 99)
    assert "VersionUnknown" in refusal(1, "pull", run, tmp_path / "x", "--version", 99)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    assert "PullRefused" in refusal(1, "pull", run, tmp_path / "taken")


def test_errors_are_json_too(tmp_path: Path, run: Path) -> None:
    result = skerry("show", run, 99, "--json")
    error = json.loads(result.stdout)["error"]
    assert (error["kind"], error["exit_code"], result.exit_code) == ("VersionUnknown", 1, 1)
    assert error["acts"]


def test_trouble_with_the_disk_has_exit_code_three(
    tmp_path: Path, samples: list[Sample], run: Path
) -> None:
    line = refusal(3, "diff", tmp_path / "v0", tmp_path / "v1", "-o", tmp_path / "no" / "x.patch")
    assert "no such file" in line.lower()


def test_a_store_that_is_full_has_exit_code_three_and_no_version(
    tmp_path: Path, samples: list[Sample]
) -> None:
    directory, bulletin = samples[0].write(tmp_path / "v0"), tmp_path / "bulletin"
    (directory / "tokenizer.model").write_bytes(os.urandom(4096))
    limited = f"ulimit -f 2; exec {sys.executable} -m skerry publish {bulletin} {directory}"
    done = subprocess.run(["bash", "-c", limited], capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    assert "full/" in done.stderr
    assert "Traceback" not in done.stderr
    assert [r["kind"] for r in answer("log", bulletin)["records"]] == ["fence"]
    assert answer("publish", bulletin, directory)["version"] == 0


def test_info_says_which_codec_is_used() -> None:
    values = answer("info")
    assert values["skerry"]
    assert values["kernel"] in values["kernels"]
    assert values["kernels"][-1] == "numpy"


def process(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "skerry", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": "80"},
    )


def test_the_module_runs_as_a_process(tmp_path: Path, samples: list[Sample]) -> None:
    directory = samples[0].write(tmp_path / "v0")
    done = process("publish", tmp_path / "bulletin", directory, "--json")
    assert (done.returncode, json.loads(done.stdout)["version"]) == (0, 0)
    assert done.stderr == ""  # no progress bar without a terminal
    done = process("show", tmp_path / "bulletin", "7")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert process("publish").returncode == 2
    assert process("pull", tmp_path / "v0", tmp_path / "x").returncode == 1


def test_help_needs_no_library_of_the_commands() -> None:
    script = (
        "import sys\n"
        "from skerry.cli import main\n"
        "sys.argv = ['skerry', '--help']\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n    assert not end.code\n"
        "heavy = {'numpy', 'torch', 'zstandard', 'cryptography', 'fastapi'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "publish" in done.stdout


def test_every_command_explains_itself() -> None:
    for command in COMMANDS:
        text = skerry(command, "--help").stdout
        assert "Usage: " in text
        assert "--json" in text


def test_a_published_record_is_what_the_library_reads(run: Path) -> None:
    reader = open_reader(str(run), history=True)
    assert isinstance(reader.history[-1].body, Commit)
    assert open_store(str(run)).size(reader.state.commits[1].packs[0].key) > 0


@pytest.mark.parametrize(
    "arguments",
    [["show"], ["show", "{run}", "seven"], ["log", "{run}", "--key", "nonsense"], ["frobnicate"],
     ["publish", "{run}", "/nowhere"], ["show", "{run}", "--nonsense"],
     ["verify", "{run}", "--version", "1"], ["pull", "{run}", "x", "--version", "-1"]],
)  # fmt: skip
def test_a_wrong_command_line_is_json_too(run: Path, arguments: list[str]) -> None:
    result = skerry(*(argument.format(run=run) for argument in arguments), "--json")
    assert result.exit_code == 2
    error = json.loads(result.stdout)["error"]
    assert (error["kind"], error["exit_code"]) == ("usage", 2)
    assert error["message"]
    assert error["acts"]


def test_a_bulletin_is_not_taken_for_a_checkpoint(tmp_path: Path, run: Path) -> None:
    before = read_tree(tmp_path)
    line = refusal(1, "publish", tmp_path / "v0", run)
    assert "BULLETIN before CKPT_DIR" in line
    assert read_tree(tmp_path) == before


def test_a_bulletin_at_a_file_is_refused_at_once(tmp_path: Path, samples: list[Sample]) -> None:
    directory = samples[0].write(tmp_path / "v0")
    (tmp_path / "file").touch()
    assert "is not a directory" in refusal(3, "publish", tmp_path / "file", directory)


def test_keygen_replaces_no_key_file(tmp_path: Path) -> None:
    (tmp_path / "run.key.pub").write_text("of a key that is kept elsewhere")
    assert "run.key.pub" in refusal(2, "keygen", tmp_path / "run.key")
    assert [path.name for path in tmp_path.iterdir()] == ["run.key.pub"]
    assert (tmp_path / "run.key.pub").read_text() == "of a key that is kept elsewhere"


def test_a_key_that_is_neither_a_file_nor_digits_is_said_to_be_so(run: Path) -> None:
    result = skerry("log", run, "--key", "run.key.pub")
    assert result.exit_code == 2
    assert "no such file" in " ".join(result.stderr.split())


def hostile(tmp_path: Path) -> Path:
    """Return an unsigned run whose writer keeps the form of records and nothing else."""
    bulletin = tmp_path / "hostile"
    writer = BulletinWriter.open(
        open_store(str(bulletin)), signer=None, writer="w", now=lambda: 2**63 - 1
    )
    layout = writer.put_layout(Layout(shards=()))
    stat = TensorStat(name="not there", changed=1, words=1, nbytes=1)
    writer.commit(
        parent=None, step=0, layout=layout, base=None, result=digest_bytes(b""), elements=1,
        manifest=writer.put_manifest(Manifest(layout=layout, tensors=(stat,))), changed=1,
        full=writer.put_full([("a", [b""])]),
    )  # fmt: skip
    return bulletin


def test_hostile_records_are_refused_and_never_a_traceback(tmp_path: Path) -> None:
    bulletin = hostile(tmp_path)
    assert f"{2**63 - 1} ms" in skerry("log", bulletin).stdout
    for extra in ([], ["--tensors"]):
        line = refusal(1, "show", bulletin, *extra)
        assert "RecordInvalid" in line
        assert "not there" in line
    assert skerry("show", bulletin, "9" * 5000).exit_code == 2
    assert "not there" in skerry("verify", bulletin).stdout


def test_names_that_are_not_text_can_be_printed(tmp_path: Path, run: Path) -> None:
    target = tmp_path / os.fsdecode(b"pulled-\xff")
    done = process("pull", run, target, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["directory"] == str(target)


def test_a_table_is_whole_on_a_narrow_terminal(run: Path) -> None:
    parent, child = pty.openpty()
    command = [sys.executable, "-m", "skerry", "log", str(run)]
    env = {**os.environ, "COLUMNS": "80", "TERM": "dumb"}
    subprocess.run(command, stdout=child, env=env, check=True)
    os.close(child)
    text = os.read(parent, 100_000).decode()
    os.close(parent)
    assert "…" not in text
    assert "skerry-publish" in text


def test_a_reader_that_leaves_early_is_no_trouble(run: Path) -> None:
    for command in ("log", "show"):
        line = f"{sys.executable} -u -m skerry {command} {run} --json | true"
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=False)
        assert done.stderr == ""
