"""kill -9 of the publisher at every point of a commit: the log stays whole."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from skerry.bulletin import keys
from skerry.bulletin.checkpoint import CHECKPOINT_INTERVAL
from skerry.bulletin.log import BulletinReader
from skerry.bulletin.stores import open_store
from tests.bulletin.log_builder import SIGNER, LogBuilder, digest
from tests.bulletin.runs import commit_of, open_writer, publish, read_log

REPOSITORY = Path(__file__).parents[2]


def crash(root: Path, point: str, count: int) -> bool:
    """Run one publisher that dies at a point of its commit; return whether it got so far."""
    command = [sys.executable, "-m", "tests.bulletin.crashing_writer", str(root), point, str(count)]
    code = subprocess.run(command, cwd=REPOSITORY, check=False, timeout=60).returncode
    assert code in (0, -signal.SIGKILL)
    return code != 0


def test_a_publisher_killed_between_record_checkpoint_and_hint_leaves_a_readable_run(
    tmp_path: Path,
) -> None:
    log = LogBuilder.with_versions(CHECKPOINT_INTERVAL - 2)
    template = tmp_path / "template"
    for seq, record in enumerate(log.slots):
        open_store(str(template)).put(keys.log(seq), [record])
    count, left = 0, []
    while True:
        count += 1
        root = tmp_path / str(count)
        shutil.copytree(template, root)
        died = crash(root, "after", count)  # its commit is the 257th record

        store = open_store(str(root))
        whole = BulletinReader(store, history=True)
        whole.refresh()
        assert len(whole.history) == CHECKPOINT_INTERVAL + 1
        fresh = BulletinReader(store, pinned_key=SIGNER.public_key)
        fresh.refresh()
        assert fresh.state.head == whole.state.head
        assert dict(fresh.state.commits) == dict(whole.state.commits)
        left.append(
            (
                fresh.checkpoint is not None,
                (root / keys.HINT).exists(),
                (root / keys.COST).exists(),
            )
        )
        publish(open_writer(store, writer="next"), "after")  # and heals what is missing
        healed = BulletinReader(store)
        healed.refresh()
        assert healed.checkpoint is not None
        if not died:
            break
    nothing, checkpoint, hint, everything = (
        (False, False, False), (True, False, False), (True, True, False), (True, True, True),
    )  # fmt: skip
    assert left == [nothing, nothing, checkpoint, hint, hint, everything]


@pytest.mark.parametrize(("point", "fewest"), [("request", 12), ("syscall", 8)])
def test_a_publisher_killed_at_any_point_leaves_a_whole_log(
    tmp_path: Path, point: str, fewest: int
) -> None:
    count = 0
    visible = []
    while True:
        count += 1
        root = tmp_path / str(count)
        store = open_store(str(root))
        publish(open_writer(store), "zero")
        died = crash(root, point, count)

        state = read_log(store).state  # fetches and verifies all that the log names
        found = [commit.result for commit in state.commits.values()]
        assert found in ([digest("zero")], [digest("zero"), digest("one")])
        visible.append(len(found) == 2)

        writer = open_writer(store, writer="next")
        record = publish(writer, "after")
        assert commit_of(record).version == len(found)
        assert record.epoch == state.epoch + 1
        assert read_log(store).state.newest == record.body
        if not died:
            break
    assert count > fewest  # the kills did come between the steps
    assert visible == sorted(visible)  # one commit point: invisible before it, whole after it
    assert not visible[0]
    assert visible[-1]
