"""The store in a dict."""

from __future__ import annotations

import pytest

from skerry.bulletin.stores.memory import MemoryStore
from tests.bulletin.store_contract import StoreContract


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def store(self) -> MemoryStore:
        return MemoryStore()
