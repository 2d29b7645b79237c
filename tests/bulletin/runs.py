"""A small publisher over a real writer: versions of weights that are just text."""

from __future__ import annotations

from skerry.bulletin.log import BulletinReader, BulletinWriter
from skerry.bulletin.manifest import Manifest
from skerry.bulletin.patience import Patience
from skerry.bulletin.records import Commit, Record
from skerry.bulletin.signing import Signer
from skerry.bulletin.store import ObjectStore
from skerry.codec.layout import Layout
from tests.bulletin.faults import FakeTime
from tests.bulletin.log_builder import SIGNER, digest

LAYOUT = Layout(shards=())


def open_writer(
    store: ObjectStore,
    *,
    signer: Signer | None = SIGNER,
    writer: str = "writer",
    patience: Patience | None = None,
) -> BulletinWriter:
    """Open a run without ever really sleeping."""
    return BulletinWriter.open(
        store,
        signer=signer,
        writer=writer,
        wait=FakeTime().patience(5),
        patience=patience or FakeTime().patience(60),
    )


def publish(writer: BulletinWriter, text: str, *, parent: int | None = None) -> Record:
    """Publish weights: a full version when the run is empty, else a patch of three packs.

    The parent is the newest version unless another one is given.
    """
    state = writer.reader.state
    layout = writer.put_layout(LAYOUT)
    manifest = writer.put_manifest(Manifest(layout=layout))
    if state.newest is None:
        full = writer.put_full([("model.safetensors", [text.encode(), b"!"]), ("a.json", [])])
        return writer.commit(
            parent=None, step=0, layout=layout, manifest=manifest, base=None,
            result=digest(text), full=full, elements=10, changed=None,
        )  # fmt: skip
    if parent is None:
        parent = state.newest.version
    packs = tuple(writer.put_pack(f"{text} pack {n}".encode()) for n in range(3))
    return writer.commit(
        parent=parent, step=state.newest.step + 1, layout=layout, manifest=manifest,
        base=state.commits[parent].result, result=digest(text), packs=packs, elements=10, changed=1,
    )  # fmt: skip


def commit_of(record: Record) -> Commit:
    assert isinstance(record.body, Commit)
    return record.body


def read_log(store: ObjectStore) -> BulletinReader:
    """Read the whole log as a stranger does, and fetch everything that it names."""
    reader = BulletinReader(store, wait=FakeTime().patience(0), history=True)
    reader.refresh()
    for commit in reader.state.commits.values():
        assert reader.layout(commit.layout) == LAYOUT
        assert reader.manifest(commit.manifest).layout == commit.layout
        for ref in (*commit.packs, *(commit.full.objects if commit.full else ())):
            assert len(reader.read(ref)) == ref.size
    return reader
