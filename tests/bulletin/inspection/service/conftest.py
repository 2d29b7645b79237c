"""One small run, served for all tests that only ask."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from skerry.bulletin.stores.memory import MemoryStore
from tests.bulletin.inspection.service.serving import Served, serving, small_run


@pytest.fixture(scope="session")
def run() -> MemoryStore:
    return small_run()


@pytest.fixture(scope="session")
def served(run: MemoryStore) -> Iterator[Served]:
    with serving(run) as service:
        yield service
