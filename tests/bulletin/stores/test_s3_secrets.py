"""What must stay secret stays so, and what caches and roads are told is right."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from skerry.benchmarks.credentials import ACCESS_KEY, SECRET_KEY
from skerry.benchmarks.seaweed import Seaweed
from skerry.bulletin.errors import InvalidKey, StoreDenied, StoreError, StoreUnavailable
from skerry.bulletin.store import ObjectStore
from skerry.bulletin.stores.retries import Retries, RetryConfig
from skerry.bulletin.stores.s3 import S3Store
from skerry.bulletin.stores.s3_address import S3Address
from tests.servers.fault_proxy import Fault, fault_proxy

TOKEN = "a-session-token-that-nobody-may-see"
ONCE = Retries(RetryConfig(read_s=0, write_s=0))
VERBS: list[Callable[[ObjectStore], Any]] = [
    lambda store: store.get("k", limit_bytes=1),
    lambda store: store.get_range("k", 0, 1),
    lambda store: list(store.stream("k", 0, 1)),
    lambda store: store.size("k"),
    lambda store: store.put("k", [b"x"]),
    lambda store: store.put("k", [bytes(17 << 20)]),
    lambda store: store.put_if_absent("k", b"x"),
    lambda store: store.replace("k", b"x"),
    lambda store: list(store.list_after("")),
    lambda store: store.delete("k"),
]


def store_at(url: str) -> S3Store:
    return S3Store(S3Address.parse(url), retries=ONCE)


def told(error: BaseException, caplog: pytest.LogCaptureFixture) -> str:
    return "".join(traceback.format_exception(error)) + repr(error) + caplog.text


@pytest.mark.parametrize("trouble", ["wrong secret", "reset", "error", "nobody there"])
def test_no_error_and_no_log_line_holds_a_credential_or_a_signature(
    seaweed: Seaweed,
    session_bucket: str,
    aws: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    trouble: str,
) -> None:
    caplog.set_level(logging.DEBUG)
    secrets = {ACCESS_KEY, SECRET_KEY, TOKEN, "X-Amz-Signature", "Signature="}
    if trouble == "wrong secret":
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY + "-wrong")
        monkeypatch.setenv("AWS_SESSION_TOKEN", TOKEN)
    with fault_proxy(seaweed.address) as proxy:
        faults = {"reset": Fault.RESET, "error": Fault.ERROR}
        proxy.decide = lambda request: faults.get(trouble)
        endpoint = "http://127.0.0.1:9" if trouble == "nobody there" else proxy.endpoint
        store = store_at(seaweed.url(session_bucket, "secrets", endpoint=endpoint))
        for verb in VERBS:
            with pytest.raises(StoreError) as caught:
                verb(store)
            found = told(caught.value, caplog)
            assert not [secret for secret in secrets if secret in found]
    assert not [secret for secret in secrets if secret in repr(store)]


def test_nobody_there_changes_nothing(aws: None) -> None:
    store = store_at("s3://bucket/x?endpoint_url=http://127.0.0.1:9&addressing_style=path")
    for verb in VERBS:
        with pytest.raises(StoreUnavailable):
            verb(store)


def test_refused_credentials_are_no_reason_to_try_again(
    seaweed: Seaweed, session_bucket: str, aws: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    store = store_at(seaweed.url(session_bucket))
    for verb in VERBS:
        with pytest.raises(StoreDenied):
            verb(store)


def test_no_credentials_are_named_as_such(aws: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    store = store_at("s3://bucket/x?endpoint_url=http://127.0.0.1:9&addressing_style=path")
    for verb in VERBS:
        with pytest.raises(StoreDenied, match="NoCredentialsError"):
            verb(store)


def test_objects_say_how_long_they_may_be_cached(
    seaweed: Seaweed, session_bucket: str, aws: None
) -> None:
    store = store_at(seaweed.url(session_bucket, "cache"))
    store.put("packs/1", [b"x"])
    store.put("packs/2", [bytes(17 << 20)])
    store.put_if_absent("log/1", b"x")
    store.put_if_absent("hint/probe-1", b"x")
    store.replace("hint/latest.json", b"x")
    store.replace("islands/a.json", b"x")
    client = seaweed.client()

    def cached(key: str) -> str:
        return str(client.head_object(Bucket=session_bucket, Key=f"cache/{key}")["CacheControl"])

    for key in ("packs/1", "packs/2", "log/1"):
        assert cached(key) == "public, max-age=31536000, immutable"
    for key in ("hint/probe-1", "hint/latest.json", "islands/a.json"):
        assert cached(key) == "no-cache"


@pytest.mark.parametrize(
    ("endpoint", "signs"),
    [("https://host", False), ("http://127.0.0.1:1", False), ("http://localhost:1", False),
     ("http://host", True), ("http://127.0.0.1.host", True)],
)  # fmt: skip
def test_bodies_are_signed_where_others_could_change_them_on_the_way(
    aws: None, endpoint: str, signs: bool
) -> None:
    store = store_at(f"s3://bucket/x?endpoint_url={endpoint}")
    assert store._s3.meta.config.s3["payload_signing_enabled"] is signs
    assert store._s3.meta.config.retries["total_max_attempts"] == 1


def test_an_endpoint_from_the_environment_is_used_and_checked(
    seaweed: Seaweed, session_bucket: str, aws: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", seaweed.endpoint)
    store = store_at(f"s3://{session_bucket}/env?addressing_style=path")
    store.put("k", [b"x"])
    assert b"".join(store.stream("k", 0, 1)) == b"x"


def test_a_key_that_is_too_long_with_its_prefix_is_refused(aws: None) -> None:
    store = store_at("s3://bucket/" + "p" * 200)
    with pytest.raises(InvalidKey, match="with the prefix"):
        store.size("/".join(["d" * 100] * 9))


def test_a_presigned_address_is_made_anew_when_it_is_refused_or_old(
    seaweed: Seaweed, session_bucket: str, aws: None
) -> None:
    store = store_at(seaweed.url(session_bucket, "sign"))
    store.put("k", [b"0123456789"])
    assert b"".join(store.stream("k", 0, 10)) == b"0123456789"
    name, (url, made_at) = next(iter(store._signed.items()))
    store._signed[name] = (url.replace("X-Amz-Signature=", "X-Amz-Signature=0"), made_at)
    assert b"".join(store.stream("k", 0, 10)) == b"0123456789"
    store._signed[name] = ("http://127.0.0.1:9/never-used", made_at - 10_000)
    assert b"".join(store.stream("k", 0, 10)) == b"0123456789"
