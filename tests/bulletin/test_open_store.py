"""Addresses of stores."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from skerry.bulletin.errors import UnsupportedStore
from skerry.bulletin.stores import Mirrored, Retrying, open_store
from skerry.bulletin.stores.s3_address import S3Address


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
    ["", "ftp://host/x", "file://", "file://host/x", "file:///a?b", "file:///a%00b", "file:///%ff",
     "memory://", "memory://a/b", "a\0b"],
)  # fmt: skip
def test_any_other_address_is_refused_by_name(url: str) -> None:
    with pytest.raises(UnsupportedStore, match=r"file:///|memory://"):
        open_store(url)


@pytest.mark.parametrize(
    "url",
    ["https://", "https:///x", "https://host:x/", "https://host/x?token=secret", "http://host/#x",
     "https://user:secret@host/x", "https://hö/x",
     "s3://", "s3:///x", "s3://user:secret@bucket/x", "s3://bu", "s3://bucket/x#y", "s3://bucket/a//b",
     "s3://bucket/../x", "s3://bucket/%ff", "s3://bucket/x?region=a&region=b",
     "s3://bucket/x?secret=secret", "s3://bucket?aws_secret_access_key=secret", "s3://bucket?region=",
     "s3://bucket/x?region=secret/secret", "s3://bucket/x?addressing_style=secret",
     "s3://bucket?endpoint_url=ftp://host", "s3://bucket?endpoint_url=http://a:secret@host",
     "s3://bucket?endpoint_url=https://host/secret", "s3://bucket?endpoint_url=https://host?secret",
     "s3://bucket/x?nonsense"],
)  # fmt: skip
def test_a_network_address_is_parsed_strictly_and_no_secret_is_repeated(url: str) -> None:
    with pytest.raises(UnsupportedStore) as caught:
        open_store(url)
    assert "secret" not in str(caught.value).replace("aws_secret", "")
    assert caught.value.__cause__ is None


def test_an_s3_address_says_all_that_is_not_a_secret() -> None:
    found = S3Address.parse(
        "s3://bucket/runs/a%20b/?endpoint_url=http://127.0.0.1:8333&region=eu-1&addressing_style=path"
    )
    assert found == S3Address(
        bucket="bucket",
        prefix="runs/a b",
        endpoint_url="http://127.0.0.1:8333",
        region="eu-1",
        addressing_style="path",
    )
    assert S3Address.parse("s3://bucket") == S3Address(bucket="bucket")


def test_addresses_with_commas_between_them_are_mirrors_and_a_path_may_hold_one(
    tmp_path: Path,
) -> None:
    open_store(f"{tmp_path}/a,b").put("k", [b"x"])
    assert (tmp_path / "a,b" / "k").is_file()
    mirrored = open_store(f"memory://written-to,file://{tmp_path}/a,b")
    assert isinstance(mirrored, Mirrored)
    assert mirrored.get("k", limit_bytes=1) == b"x"
    mirrored.put("k2", [b"y"])
    assert open_store("memory://written-to").size("k2") == 1


def test_stores_on_a_network_are_asked_again() -> None:
    assert isinstance(open_store("https://host/run"), Retrying)
    assert isinstance(open_store("s3://bucket/run"), Retrying)


@pytest.mark.parametrize(
    ("url", "package", "extra"),
    [("s3://bucket/run", "boto3", "s3"), ("https://host/run", "aiohttp", "http")],
)
def test_a_missing_extra_is_named(url: str, package: str, extra: str) -> None:
    code = (
        f"import sys; sys.modules[{package!r}] = None\n"
        f"from skerry.bulletin import open_store\n"
        f"try: open_store({url!r})\n"
        f"except Exception as error: print(type(error).__name__, error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("UnsupportedStore")
    assert f"pip install 'skerry[{extra}]'" in done.stdout
