"""A publisher that is killed at any moment leaves whole versions only, and all that it reported."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from skerry.bulletin.reader import BulletinReader
from skerry.bulletin.stores import open_store
from skerry.island_agent.pull import pull
from skerry.publisher.audit import audit
from tests.publisher.samples import Sample, edit_side_files, edit_weights, make, read_tree

ROUNDS = 6
PUBLISHER = """
import sys
from pathlib import Path
from skerry.bulletin.stores import open_store
from skerry.publisher import Checkpoint, Publisher, PublisherConfig, StateDirectory

root = Path(sys.argv[1])
publisher = Publisher.open(
    open_store(str(root / "bulletin")),
    config=PublisherConfig(anchor_versions=2),
    storage=StateDirectory(root / "state"),
)
print("open", flush=True)
while True:
    number = len(publisher.reader.state.commits)
    report = publisher.publish(Checkpoint.scan(root / str(number % 5)))
    print(report.version, flush=True)
"""


def states() -> list[Sample]:
    samples = [make(31, sharded=True)]
    for number in range(4):
        samples.append(edit_weights(edit_side_files(samples[-1], number), number))
    return samples


def test_a_killed_publisher_loses_nothing_it_reported_and_shows_nothing_half(
    tmp_path: Path,
) -> None:
    samples = states()
    for number, sample in enumerate(samples):
        sample.write(tmp_path / str(number))
    moments = random.Random(7)
    reported = -1
    for _ in range(ROUNDS):
        with subprocess.Popen(
            [sys.executable, "-c", PUBLISHER, str(tmp_path)], stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "open\n"
            time.sleep(moments.random() * 0.4)  # where the kill falls, not a wait for anything
            process.send_signal(signal.SIGKILL)
            lines = process.stdout.read().splitlines()
        reported = max([reported, *map(int, lines)])

        reader = BulletinReader(open_store(str(tmp_path / "bulletin")))
        reader.refresh()
        assert len(reader.state.commits) > reported
        assert list(audit(reader)) == []

    assert list(audit(reader, deep=True)) == []
    assert reported >= 0
    for version in range(len(reader.state.commits)):
        target = tmp_path / f"pulled-{version}"
        pull(reader, target, version)
        assert read_tree(target) == samples[version % 5].files()
