"""A real S3 behind a bad road: nothing is lost, nothing wrong is believed, retries are bounded."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterator
from random import Random
from urllib.parse import unquote, urlsplit

import pytest

from skerry.benchmarks.seaweed import Seaweed
from skerry.bulletin.errors import (
    AlreadyExists,
    NotFound,
    OutcomeUnknown,
    StoreError,
    StoreUnavailable,
    StoreUnsafe,
)
from skerry.bulletin.stores.retries import Retries, RetryBudget, RetryConfig
from skerry.bulletin.stores.retrying import Retrying
from skerry.bulletin.stores.s3 import S3Store
from skerry.bulletin.stores.s3_address import S3Address
from tests.bulletin.runs import open_writer
from tests.servers.fault_proxy import Fault, FaultProxy, Request, fault_proxy

OPERATIONS = 1000
FAST = RetryConfig(first_delay_s=0.001, longest_delay_s=0.01, read_s=20, write_s=20)


@pytest.fixture
def proxy(seaweed: Seaweed) -> Iterator[FaultProxy]:
    with fault_proxy(seaweed.address) as proxy:
        yield proxy


@pytest.fixture
def raw(seaweed: Seaweed, session_bucket: str, proxy: FaultProxy, aws: None) -> S3Store:
    """The store without retries."""
    url = seaweed.url(session_bucket, secrets.token_hex(8), endpoint=proxy.endpoint)
    return S3Store(S3Address.parse(url), retries=Retries(RetryConfig(read_s=0, write_s=0)))


def patient(raw: S3Store, budget: RetryBudget) -> Retrying:
    retries = Retries(FAST, budget=budget)
    return Retrying(S3Store(raw._address, retries=retries), retries)


def harm_next(proxy: FaultProxy, fault: Fault, *methods: str) -> None:
    left = [fault]

    def decide(request: Request) -> Fault | None:
        return left.pop() if left and request.method in methods else None

    proxy.decide = decide


def test_a_thousand_random_operations_lose_nothing_and_believe_nothing_wrong(
    raw: S3Store, proxy: FaultProxy
) -> None:
    random = Random(20)
    kinds = [Fault.RESET, Fault.STORM, Fault.ERROR, Fault.CUT, Fault.SHORT, Fault.LOST, Fault.SLOW,
             Fault.CONFLICT]  # fmt: skip
    proxy.decide = lambda request: random.choice(kinds) if random.random() < 0.15 else None
    budget = RetryBudget(capacity=200, per_s=100)
    store = patient(raw, budget)
    model: dict[str, bytes] = {}
    done: Counter[str] = Counter()
    for number in range(OPERATIONS):
        key = f"k/{random.randrange(40)}"
        data = random.randbytes(random.choice([0, 10, 3000, 300_000]))
        verb = random.choice(["put_if_absent", "get", "get", "stream", "size", "list", "delete"])
        done[verb] += 1
        expected = model.get(key)
        try:
            match verb:
                case "put_if_absent":
                    slot = f"log/{number}"
                    while True:  # as a writer does
                        try:
                            store.put_if_absent(slot, data)
                        except OutcomeUnknown:
                            continue
                        except AlreadyExists:
                            assert store.get(slot, limit_bytes=300_000) == data
                        break
                    model[slot] = data
                    store.put(key, iter([data[:5], data[5:]]))
                    model[key] = data
                case "get":
                    assert store.get(key, limit_bytes=300_000) == expected
                case "stream":
                    size = len(expected or b"")
                    assert b"".join(store.stream(key, 0, size)) == expected
                case "size":
                    assert store.size(key) == len(expected or b"")
                case "list":
                    assert list(store.list_after("")) == sorted(model, key=str.encode)
                case "delete":
                    store.delete(key)
                    model.pop(key, None)
        except NotFound:
            assert expected is None
    proxy.decide = lambda request: None
    assert {name: store.get(name, limit_bytes=300_000) for name in model} == model
    assert list(store.list_after("")) == sorted(model, key=str.encode)
    assert set(proxy.harmed) == set(kinds)
    harmed = sum(proxy.harmed.values())
    print(f"{OPERATIONS} operations {dict(done)}, {proxy.requests} requests, {harmed} came to harm "
          f"{dict(proxy.harmed)}, {budget.spent} retries")  # fmt: skip
    assert budget.spent <= harmed


def test_a_storm_of_503_is_not_made_worse(raw: S3Store, proxy: FaultProxy) -> None:
    proxy.decide = lambda request: Fault.STORM
    budget = RetryBudget(capacity=10, per_s=1, per_success=0)
    retries = Retries(RetryConfig(first_delay_s=0.001, read_s=0.5), budget=budget)
    store = Retrying(S3Store(raw._address, retries=retries), retries)
    operations = 30
    for number in range(operations):
        with pytest.raises(StoreUnavailable, match="503"):
            store.size(f"k/{number}")
    assert proxy.requests == operations + budget.spent
    assert budget.spent <= 10 + 20  # what the budget holds, and what half a second each adds


def test_a_lost_reply_is_never_reported_as_a_taken_key(raw: S3Store, proxy: FaultProxy) -> None:
    harm_next(proxy, Fault.LOST, "PUT")
    store = Retrying(raw)
    with pytest.raises(OutcomeUnknown):
        store.put_if_absent("log/0", b"mine")
    assert proxy.requests == 1  # nobody repeated it behind our back
    with pytest.raises(AlreadyExists):
        store.put_if_absent("log/0", b"mine")
    assert store.get("log/0", limit_bytes=4) == b"mine"


@pytest.mark.parametrize("fault", [Fault.CONFLICT, Fault.ERROR, Fault.STORM, Fault.RESET])
def test_no_answer_to_a_conditional_put_is_an_unknown_outcome(
    raw: S3Store, proxy: FaultProxy, fault: Fault
) -> None:
    harm_next(proxy, fault, "PUT")
    with pytest.raises(OutcomeUnknown):
        raw.put_if_absent("log/0", b"x")
    raw.put_if_absent("log/0", b"x")


@pytest.mark.parametrize("fault", [Fault.CUT, Fault.SHORT, Fault.RESET, Fault.LOST])
def test_a_body_that_breaks_off_is_no_body(raw: S3Store, proxy: FaultProxy, fault: Fault) -> None:
    raw.put("k", [b"0123456789"])
    for read in (
        lambda: raw.get("k", limit_bytes=10),
        lambda: raw.get_range("k", 2, 8),
        lambda: list(raw.stream("k", 0, 10)),
    ):
        # Of every request: aiohttp repeats one by itself when its connection dies.
        proxy.decide = lambda request: fault if request.method == "GET" else None
        with pytest.raises(StoreUnavailable):
            read()


def test_a_stream_goes_on_from_the_byte_reached(raw: S3Store, proxy: FaultProxy) -> None:
    data = Random(3).randbytes(6_000_000)
    raw.put("k", [data])
    asked: list[str] = []
    conditions: list[str | None] = []
    random = Random(4)

    def decide(request: Request) -> Fault | None:
        if request.method == "GET":
            asked.append(request.headers["range"])
            conditions.append(request.headers.get("if-match"))
        return Fault.CUT if random.random() < 0.5 else None

    proxy.decide = decide
    store = patient(raw, RetryBudget(capacity=500))
    assert b"".join(store.stream("k", 1, len(data))) == data[1:]
    assert proxy.harmed[Fault.CUT] >= 3
    starts = [int(text.removeprefix("bytes=").partition("-")[0]) for text in asked]
    assert len(set(starts)) > 6  # not only at the starts of ranges
    first = conditions.count(None)  # asked before anything was answered
    assert 0 < first < len(conditions)
    assert conditions == [None] * first + conditions[-1:] * (len(conditions) - first)


def test_a_list_that_is_late_hides_names_and_invents_none(raw: S3Store, proxy: FaultProxy) -> None:
    raw.put("a", [b"x"])
    assert list(raw.list_after("")) == ["a"]
    raw.put("b", [b"x"])
    proxy.decide = lambda request: Fault.STALE
    assert list(raw.list_after("")) == ["a"]
    assert raw.get("b", limit_bytes=1) == b"x"


def test_a_store_that_ignores_conditions_is_refused_when_a_run_is_opened(
    raw: S3Store, proxy: FaultProxy, seaweed: Seaweed, session_bucket: str
) -> None:
    signer = seaweed.client()

    def unconditional(target: str) -> str:
        name = unquote(urlsplit(target).path).removeprefix(f"/{session_bucket}/")
        url = urlsplit(
            signer.generate_presigned_url("put_object", {"Bucket": session_bucket, "Key": name})
        )
        return f"{url.path}?{url.query}"

    proxy.unconditional = unconditional
    proxy.decide = lambda request: Fault.UNCONDITIONAL
    with pytest.raises(StoreUnsafe, match="conditional put of a taken key succeeded"):
        open_writer(raw)
    assert proxy.harmed[Fault.UNCONDITIONAL] == 2
    assert list(raw.list_after("log/")) == []


def test_parts_of_a_large_object_are_sent_again_and_an_error_leaves_nothing(
    raw: S3Store, proxy: FaultProxy, seaweed: Seaweed, session_bucket: str
) -> None:
    data = [Random(n).randbytes(8 * 1024 * 1024) for n in range(5)]
    random = Random(5)
    proxy.decide = lambda request: random.choice([Fault.RESET, Fault.LOST, None, None])
    store = patient(raw, RetryBudget(capacity=100))
    assert store.put("packs/large", iter(data)) == 40 * 1024 * 1024
    proxy.decide = lambda request: None
    assert b"".join(store.stream("packs/large", 0, 40 * 1024 * 1024)) == b"".join(data)

    def parts() -> Iterator[bytes]:
        yield from data
        raise OSError("the source is gone")

    with pytest.raises(OSError, match="the source is gone"):
        store.put("packs/never", parts())
    proxy.decide = lambda request: Fault.ERROR if "partNumber=2" in request.target else None
    with pytest.raises(OutcomeUnknown):
        raw.put("packs/never", iter(data))
    with pytest.raises(NotFound):
        store.size("packs/never")
    left = seaweed.client().list_multipart_uploads(Bucket=session_bucket)
    assert left.get("Uploads", []) == []


def test_what_never_heals_names_the_object(raw: S3Store, proxy: FaultProxy) -> None:
    raw.put("packs/p", [b"x" * 10])
    proxy.decide = lambda request: Fault.RESET
    for read in (
        lambda: raw.get("packs/p", limit_bytes=10),
        lambda: list(raw.stream("packs/p", 0, 10)),
    ):
        with pytest.raises(StoreError) as caught:
            read()
        assert caught.value.key == "packs/p"
