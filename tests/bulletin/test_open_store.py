"""Addresses of stores."""

from __future__ import annotations

from pathlib import Path

import pytest

from skerry.bulletin.errors import UnsupportedStore
from skerry.bulletin.stores import open_store


def test_a_path_and_a_file_address_are_one_store(tmp_path: Path) -> None:
    root = tmp_path / "with space"
    open_store(str(root)).put("k", [b"x"])
    escaped = str(root).replace(" ", "%20")
    assert open_store(f"file://{escaped}").get("k", limit_bytes=1) == b"x"


def test_a_memory_store_is_shared_by_name() -> None:
    open_store("memory://shared-by-name").put("k", [b"x"])
    assert open_store("memory://shared-by-name").size("k") == 1
    assert list(open_store("memory://another-name").list_after("")) == []


@pytest.mark.parametrize(
    "url",
    ["", "s3://bucket/x", "https://host/x", "file://", "file://host/x", "file:///a?b",
     "file:///a%00b", "memory://", "memory://a/b", "a\0b"],
)  # fmt: skip
def test_any_other_address_is_refused_by_name(url: str) -> None:
    with pytest.raises(UnsupportedStore, match=r"file:///|memory://"):
        open_store(url)
