"""The contract of every store, on a real S3 server."""

from __future__ import annotations

import pytest

from skerry.bulletin.store import ObjectStore
from skerry.bulletin.stores import open_store
from tests.bulletin.store_contract import StoreContract


class TestS3Store(StoreContract):
    writers, slots = 4, 3

    @pytest.fixture
    def store(self, run_url: str) -> ObjectStore:
        return open_store(run_url)
