"""Traffic is counted, and nothing else is changed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from skerry.bulletin.errors import NotFound
from skerry.bulletin.stores.memory import MemoryStore
from skerry.bulletin.stores.metered import Metered, Usage
from tests.bulletin.store_contract import StoreContract


class TestMetered(StoreContract):
    @pytest.fixture
    def store(self) -> Metered:
        return Metered(MemoryStore())


def test_requests_are_counted_by_verb_and_bytes_by_direction() -> None:
    store = Metered(MemoryStore())
    store.put("p", [b"12", b"345"])
    store.put("q", iter([b"12", b"345"]))
    store.put_if_absent("c", b"1")
    store.replace("h", b"22")
    before = store.usage()
    assert (before.bytes_up, before.bytes_down) == (13, 0)
    store.get("p", limit_bytes=5)
    store.get_range("p", 1, 3)
    list(store.stream("p", 0, 4))
    list(store.list_after(""))
    store.size("p")
    store.delete("p")
    with pytest.raises(NotFound):
        store.get("p", limit_bytes=5)
    assert dict(before.requests) == {"put": 2, "put_if_absent": 1, "replace": 1}
    assert store.usage() - before == Usage(
        requests={"get": 2, "get_range": 1, "stream": 1, "list_after": 1, "size": 1, "delete": 1},
        bytes_up=0,
        bytes_down=11,
    )


def test_nothing_is_lost_between_threads() -> None:
    store = Metered(MemoryStore())
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: store.replace(str(n), b"x"), range(2000)))
    assert store.usage() == Usage(requests={"replace": 2000}, bytes_up=2000)
