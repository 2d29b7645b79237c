"""What is published is what is pulled, file by file and byte by byte."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skerry.bulletin.reader import BulletinReader
from skerry.bulletin.store import ObjectStore
from skerry.bulletin.stores import MemoryStore
from skerry.island_agent.pull import pull
from skerry.publisher import Checkpoint, Publisher, PublisherConfig
from skerry.publisher.audit import audit
from tests.publisher.samples import (
    Sample,
    edit_side_files,
    edit_structure,
    edit_weights,
    make,
    read_tree,
)

Edit = Callable[[Sample, int], Sample]

EDITS: dict[str, Edit] = {
    "weights": edit_weights,
    "side files": edit_side_files,
    "both": lambda sample, seed: edit_side_files(edit_weights(sample, seed), seed),
    "structure": edit_structure,
    "nothing": lambda sample, _: sample,
}
rounds = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))


def pulled(store: ObjectStore, version: int, root: Path) -> dict[str, bytes]:
    target = root / f"pulled-{version}"
    pull(BulletinReader(store), target, version)
    return read_tree(target)


@rounds
@given(
    seed=st.integers(0, 2**32),
    sharded=st.booleans(),
    edits=st.lists(st.sampled_from(sorted(EDITS)), min_size=1, max_size=4),
)
def test_every_version_arrives_byte_identical(seed: int, sharded: bool, edits: list[str]) -> None:
    samples = [make(seed, sharded=sharded)]
    for number, edit in enumerate(edits):
        samples.append(EDITS[edit](samples[-1], seed + number))
    store = MemoryStore()
    publisher = Publisher.open(store, config=PublisherConfig(anchor_versions=3))
    with TemporaryDirectory() as scratch:
        root = Path(scratch)
        for sample in samples:
            directory = sample.write(root / f"{len(list(root.iterdir()))}")
            publisher.publish(Checkpoint.scan(directory))
        for version, sample in enumerate(samples):
            assert pulled(store, version, root) == sample.files()
    reader = BulletinReader(store)
    reader.refresh()
    assert list(audit(reader, deep=True)) == []
