"""Records: one spelling, and everything else refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.bulletin.errors import RecordInvalid
from skerry.bulletin.records import RECORD_LIMIT_BYTES, Commit, Record
from skerry.bulletin.signing import Signer
from tests.bulletin.log_builder import LogBuilder, digest
from tests.bulletin.strategies import commits, records

Json = dict[str, Any]


@given(records)
def test_round_trips_through_bytes(record: Record) -> None:
    data = record.to_bytes()
    assert Record.parse(data) == record
    assert record.size == len(data)


@given(records)
def test_the_stored_form_is_canonical_json(record: Record) -> None:
    data = record.to_bytes()
    text = json.dumps(json.loads(data), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert data == text.encode()


@given(records, st.data())
def test_another_spelling_of_the_same_json_is_refused(record: Record, data: st.DataObject) -> None:
    canonical = record.to_bytes()
    value = json.loads(canonical)
    respelled = data.draw(
        st.sampled_from(
            [
                canonical + b"\n",
                b" " + canonical,
                b"\xef\xbb\xbf" + canonical,
                json.dumps(value, sort_keys=True).encode(),
                json.dumps(
                    dict(reversed(list(value.items()))), separators=(",", ":"), ensure_ascii=False
                ).encode(),
                canonical.replace(b'"kind"', b'"\\u006bind"'),
                canonical.replace(b'{"body"', b'{"body":{},"body"', 1),
                canonical + canonical,
            ]
        )
    )
    with pytest.raises(RecordInvalid):
        Record.parse(respelled)


@given(st.binary(max_size=400))
def test_arbitrary_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(RecordInvalid):
        Record.parse(data)


@given(records, st.data())
def test_a_missing_or_unknown_field_is_refused(record: Record, data: st.DataObject) -> None:
    value = json.loads(record.to_bytes())
    inner = value["body"]
    target = data.draw(st.sampled_from([value, inner]))
    if data.draw(st.booleans()):
        del target[data.draw(st.sampled_from(sorted(target)))]
    else:
        target["extra"] = 1
    with pytest.raises(RecordInvalid):
        Record.parse(encode(value))


def encode(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode(
        "utf-8", errors="surrogatepass"
    )


@given(commits())
def test_a_signature_covers_everything_but_itself(commit: Commit) -> None:
    record = Record(
        seq=1, prev=digest("p"), epoch=1, writer="w", nonce="0" * 32, time=0, body=commit
    )
    signer = Signer.from_seed(bytes(32))
    signed = record.signed(signer)
    assert signed.signature is not None
    assert signed.payload() == record.payload()
    assert signer.public_key.verifies(signed.payload(), signed.signature)
    assert Record.parse(signed.to_bytes()) == signed


def patch_json() -> Json:
    log = LogBuilder.with_versions(2)
    value: Json = json.loads(log.records[-1].to_bytes())
    return value


def full_json() -> Json:
    log = LogBuilder.with_versions(1)
    value: Json = json.loads(log.records[-1].to_bytes())
    return value


def setting(path: str, value: object) -> Callable[[Json], None]:
    """Return a change that sets one field, given its path."""

    def change(record: Json) -> None:
        *parents, last = (int(part) if part.isdecimal() else part for part in path.split("."))
        target: Any = record
        for name in parents:
            target = target[name]
        target[last] = value

    return change


BAD_PATCH_FIELDS = [
    ("seq", True), ("seq", 1.0), ("seq", -1), ("seq", "1"), ("seq", 2**63), ("seq", None),
    ("prev", ""), ("prev", "A" * 64), ("prev", "a" * 63), ("prev", 5),
    ("epoch", 0), ("epoch", 10**8), ("writer", ""), ("writer", "a b"), ("writer", "x" * 65),
    ("writer", "-x"), ("nonce", ""), ("nonce", "0" * 31), ("nonce", "0" * 33), ("nonce", "G" * 32),
    ("kind", "merge"), ("kind", None), ("kind", ["commit"]), ("kind", "skip"),
    ("time", -1), ("time", 1.5), ("sig", ""), ("sig", "F" * 128), ("sig", "0" * 127), ("sig", 0),
    ("body", None), ("body", []), ("body", "x"),
    ("body.version", -1), ("body.version", False), ("body.version", 0), ("body.parent", None),
    ("body.parent", 1), ("body.parent", 7), ("body.step", -1), ("body.layout", None),
    ("body.manifest", "m"), ("body.base", None), ("body.result", None), ("body.packs", None),
    ("body.packs", {}), ("body.packs", []), ("body.packs", [1]), ("body.full", {}),
    ("body.full", []), ("body.elements", None), ("body.elements", 2), ("body.changed", 11),
    ("body.changed", True), ("body.bytes", 0), ("body.bytes", None),
    ("body.packs.0", []), ("body.packs.0", ["packs/00000001/" + "0" * 64]),
    ("body.packs.0", ["packs/00000001/" + "0" * 64, 10, "0" * 64]), ("body.packs.0", {}),
    ("body.packs.0.1", 0), ("body.packs.0.1", -1), ("body.packs.0.0", None),
    ("body.packs.0.0", "packs/00000001/x"), ("body.packs.0.0", "../" + "0" * 64),
    ("body.packs.0.0", "log/00000000000000000000.json"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value"), BAD_PATCH_FIELDS)
def test_a_commit_with_a_bad_field_is_refused(path: str, value: object) -> None:
    record = patch_json()
    Record.parse(encode(record))
    setting(path, value)(record)
    with pytest.raises(RecordInvalid):
        Record.parse(encode(record))


HOSTILE_NAMES = ["", ".", "..", "../x", "/etc/passwd", "a/../../b", "a\\b", "a\0b", "a//b",
                 "a/", "\ud800", "x" * 2000, "x" * 300, 5, None]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_a_full_with_a_hostile_file_name_is_refused(name: object) -> None:
    record = full_json()
    Record.parse(encode(record))
    setting("body.full.files.0.0", name)(record)
    with pytest.raises(RecordInvalid):
        Record.parse(encode(record))


BAD_FULL_FIELDS: list[tuple[str, object]] = [
    ("body.full", None), ("body.full.prefix", "full/1-x"), ("body.full.prefix", "packs/00000001/x"),
    ("body.full.prefix", "full/00000001-" + "0" * 32 + "/"), ("body.full.files", []),
    ("body.full.files.0.1", -1), ("body.full.files.0.2", None), ("body.full.files.0", ["a", 1000]),
    ("body.bytes", 1), ("body.base", "0" * 64),
]  # fmt: skip


@pytest.mark.parametrize(("path", "value"), BAD_FULL_FIELDS)
def test_a_full_commit_with_a_bad_field_is_refused(path: str, value: object) -> None:
    record = full_json()
    setting(path, value)(record)
    with pytest.raises(RecordInvalid):
        Record.parse(encode(record))


def test_files_twice_or_out_of_order_are_refused() -> None:
    for names in (["b", "a"], ["a", "a"]):
        record = full_json()
        size = record["body"]["bytes"]
        record["body"]["full"]["files"] = [[name, size // 2, digest(name)] for name in names]
        with pytest.raises(RecordInvalid, match="order of their names"):
            Record.parse(encode(record))


def test_a_pack_named_twice_is_refused() -> None:
    record = patch_json()
    record["body"]["packs"] *= 2
    record["body"]["bytes"] *= 2
    with pytest.raises(RecordInvalid, match="named twice"):
        Record.parse(encode(record))


@pytest.mark.parametrize(
    "data",
    [b"", b"null", b"[]", b"1", b"[" * 500_000, b'{"a":' * 100_000, b"9" * 400_000, b"NaN",
     b"1e999", b'"\xff"', b'"\\ud800"', b"{" + b" " * RECORD_LIMIT_BYTES + b"}"],
)  # fmt: skip
def test_hostile_json_is_refused(data: bytes) -> None:
    with pytest.raises(RecordInvalid, match="log/7"):
        Record.parse(data, what="log/7")


def test_a_thousand_packs_fit_into_one_record() -> None:
    log = LogBuilder.with_versions(1)
    data = log.append(log.patch(parent=0, packs=1000))
    assert len(data) < RECORD_LIMIT_BYTES // 4


def test_a_commit_of_one_pack_is_small() -> None:
    assert len(encode(patch_json())) < 850


def test_a_refusal_does_not_repeat_all_of_a_hostile_record() -> None:
    data = encode({f"field {n}": n for n in range(20_000)})
    with pytest.raises(RecordInvalid) as refusal:
        Record.parse(data, what="log/7")
    assert len(str(refusal.value)) < 1000
