"""Checks of a version: what may be gone is not missed, and a store that fails is no finding."""

from __future__ import annotations

import pytest

from skerry.bulletin import keys
from skerry.bulletin.errors import StoreUnavailable
from skerry.bulletin.inspection.checks import check_version
from skerry.bulletin.patience import Patience
from skerry.bulletin.reader import BulletinReader
from skerry.bulletin.stores.memory import MemoryStore
from tests.bulletin.faults import FaultyStore
from tests.bulletin.inspection.service.serving import small_run


@pytest.fixture(scope="module")
def run() -> MemoryStore:
    return small_run()


def test_a_retired_version_is_said_to_be_that_and_not_to_be_whole(run: MemoryStore) -> None:
    reader = BulletinReader(run)
    reader.refresh()
    [check] = check_version(reader, reader.state.commits[min(reader.state.retired)])
    assert check.problem == "retired, may be deleted"


@pytest.mark.parametrize(
    ("verb", "prefix"),
    [
        ("get", keys.LAYOUT_PREFIX),
        ("get", keys.MANIFEST_PREFIX),
        ("size", keys.MANIFEST_PREFIX),
        ("size", keys.PACK_PREFIX),
    ],
)
def test_a_store_that_fails_is_no_finding_about_a_version(
    run: MemoryStore, verb: str, prefix: str
) -> None:
    def before(asked: str, key: str) -> None:
        if asked == verb and key.startswith(prefix):
            raise StoreUnavailable(key, "503")

    reader = BulletinReader(FaultyStore(run, before=before), wait=Patience(limit_s=0.0))
    reader.refresh()
    with pytest.raises(StoreUnavailable):
        list(check_version(reader, reader.state.commits[40]))
