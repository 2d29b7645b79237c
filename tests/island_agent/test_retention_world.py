"""Collection and compaction beside readers: none fails but for what the rules did not keep."""

from __future__ import annotations

from pathlib import Path

import pytest

from skerry.bulletin.stores import LocalStore, MemoryStore
from tests.island_agent.retention_world import World


def test_readers_live_beside_collection_and_compaction(tmp_path: Path) -> None:
    figures = World(MemoryStore(), tmp_path, versions=60, seed=1).live()
    print(figures)
    assert figures.versions == 60
    assert figures.retired > 0
    assert figures.skips > 0


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", ["memory", "file"])
def test_readers_live_beside_collection_and_compaction_of_500_versions(
    tmp_path: Path, kind: str
) -> None:
    store = MemoryStore() if kind == "memory" else LocalStore(tmp_path / "bulletin")
    figures = World(store, tmp_path / "islands", versions=500, seed=7).live()
    print(f"{kind}: {figures}")
    assert figures.versions == 500
    assert figures.retired > 300
