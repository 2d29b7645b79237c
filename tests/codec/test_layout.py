"""A layout round-trips, and no name in it can reach outside its directory."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.codec.compress import compress, decompress
from skerry.codec.digest import Digest, digest_bytes
from skerry.codec.errors import FormatError, LimitExceeded
from skerry.codec.header import build_header
from skerry.codec.layout import Layout, Shard, SideFile, describe_difference, same_structure
from skerry.codec.names import check_name
from skerry.codec.strict_json import canonical, parse_json


def shard(name: str, *tensors: tuple[str, str, list[int]]) -> Shard:
    header = build_header(name, tensors)
    size = len(header.raw) + sum(t.nbytes for t in header.tensors)
    return Shard(name=name, size=size, header=header.raw)


def side(name: str) -> SideFile:
    return SideFile(name=name, size=3, digest=digest_bytes(name.encode()))


SAMPLE = Layout(
    shards=(shard("a.safetensors", ("w", "BF16", [2, 2])), shard("b.safetensors", ("v", "U8", []))),
    side_files=(side("config.json"), side("tok/vocab.json")),
    recipe={"cast": "bf16-rne"},
)


def test_comes_back_from_its_bytes() -> None:
    assert Layout.from_bytes(SAMPLE.to_bytes()) == SAMPLE
    assert [t.name for t in SAMPLE.tensors] == ["v", "w"]
    assert SAMPLE.words == 5
    assert SAMPLE.nbytes == sum(size for _, size in SAMPLE.files())


@pytest.mark.parametrize(
    "name",
    [
        *("", "/etc/passwd", "..", "../x", "a/../b", "a//b", "a/", "./a"),
        *("a\\b", "c:x", "a\0b", "a\nb", "x" * 256, "x/" * 512 + "y", "\ud800"),
    ],
)
def test_an_unsafe_name_is_refused(name: str) -> None:
    """G-2."""
    with pytest.raises(FormatError):
        check_name(name)
    with pytest.raises(FormatError):
        Layout(shards=(), side_files=(SideFile(name=name, size=0, digest=digest_bytes(b"")),))


@given(st.from_regex(r"[A-Za-z0-9_.\-]{1,9}(/[A-Za-z0-9_\-]{1,9}){0,3}", fullmatch=True))
def test_a_plain_relative_name_is_kept(name: str) -> None:
    if name.split("/")[0] not in {".", ".."}:
        assert check_name(name) == name


def test_a_tensor_in_two_shards_is_refused() -> None:
    with pytest.raises(FormatError, match="w is in a and again in b"):
        Layout(shards=(shard("a", ("w", "U8", [1])), shard("b", ("w", "U8", [1]))))


@pytest.mark.parametrize("names", [("a", "a"), ("b", "a"), ("a", "a/b")])
def test_files_are_in_order_and_once(names: tuple[str, str]) -> None:
    with pytest.raises(FormatError):
        Layout(shards=(), side_files=tuple(side(name) for name in names))


def test_a_tensor_table_that_contradicts_its_headers_is_refused() -> None:
    value = parse_json(decompress(SAMPLE.to_bytes(), 1 << 20), "layout")
    assert isinstance(value, dict)
    value["tensors"][0][4] += 1
    with pytest.raises(FormatError, match="contradicts"):
        Layout.from_bytes(compress(canonical(value)))


def test_a_header_inside_a_layout_is_checked_like_any_other() -> None:
    value = parse_json(decompress(SAMPLE.to_bytes(), 1 << 20), "layout")
    assert isinstance(value, dict)
    value["shards"][0]["header"] = base64.b64encode(b"\xff" * 8).decode()
    with pytest.raises(FormatError):
        Layout.from_bytes(compress(canonical(value)))


def test_structure_ignores_metadata_and_side_files_only() -> None:
    before = Layout(shards=(shard("a", ("w", "BF16", [4])),))
    assert same_structure(before, Layout(shards=before.shards, side_files=(side("x"),)))
    for after, said in (
        (Layout(shards=(shard("a", ("w", "F16", [4])),)), "was BF16 [4], is F16 [4]"),
        (Layout(shards=(shard("a", ("w", "BF16", [2, 2])),)), "was BF16 [4], is BF16 [2, 2]"),
        (Layout(shards=(shard("a", ("x", "BF16", [4])),)), "tensor w is gone"),
        (
            Layout(shards=(shard("a", ("w", "BF16", [4]), ("z", "U8", [0])),)),
            "tensor z is new",
        ),
        (Layout(shards=(shard("b", ("w", "BF16", [4])),)), "moved from a:"),
    ):
        assert not same_structure(before, after)
        assert said in describe_difference(before, after)
    assert describe_difference(before, before) == ""


def test_a_second_frame_is_never_dropped_in_silence() -> None:
    """K-1."""
    first, second = compress(b"x" * 1000), compress(b"y" * 500)
    for data in (first + second, first + b"\0", first[:-1], b"", b"not zstd", first[1:]):
        with pytest.raises(FormatError):
            decompress(data, 1 << 20)
    assert decompress(first, 1000) == b"x" * 1000
    with pytest.raises(LimitExceeded, match="1000 bytes unpacked, the limit is 999"):
        decompress(first, 999)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(10**18), 10**18) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=20,
    )
)
def test_canonical_json_has_one_form(value: object) -> None:
    try:
        text = canonical(value)
    except UnicodeEncodeError:
        return
    assert parse_json(text, "t") == value
    assert canonical(parse_json(text, "t")) == text


def test_a_key_that_is_given_twice_is_named_among_any_number_of_keys() -> None:
    """Were the search quadratic, this would take hours."""
    keys = ",".join(f'"{i}":0' for i in [*range(300_000), 299_999])
    with pytest.raises(FormatError, match="'299999' is given twice"):
        parse_json(b"{" + keys.encode() + b"}", "t")


@pytest.mark.parametrize("text", ["", "AB" * 32, "0" * 63, "0" * 65, "g" * 64, None, 7])
def test_a_digest_is_64_lower_case_hex_digits(text: object) -> None:
    from skerry.codec.digest import parse_digest

    with pytest.raises(FormatError, match="64 lower-case hex digits"):
        parse_digest(text)
    assert parse_digest("0" * 64) == Digest("0" * 64)
