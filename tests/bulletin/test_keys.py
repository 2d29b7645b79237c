"""Keys: the layout of a run, spelled once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.bulletin import keys
from skerry.bulletin.errors import InvalidKey
from skerry.codec.digest import Digest
from tests.bulletin.log_builder import digest
from tests.bulletin.strategies import digests, epochs, nonces


def test_the_layout_of_a_run_is_the_documented_one() -> None:
    name = digest("x")
    assert keys.log(7) == "log/00000000000000000007.json"
    assert keys.layout(name) == f"layouts/{name}"
    assert keys.manifest(name) == f"manifests/{name}"
    assert keys.pack(3, name) == f"packs/00000003/{name}"
    assert keys.full_prefix(3, "0123456789abcdef") == "full/00000003-0123456789abcdef"
    assert keys.full_file("full/00000003-0123456789abcdef", "a/b") == (
        "full/00000003-0123456789abcdef/a/b"
    )
    assert keys.checkpoint(256) == "checkpoints/00000000000000000256.json"
    assert keys.island("eu-1") == "islands/eu-1.json"
    assert keys.HINT == "hint/latest.json"


@given(epochs, digests)
def test_a_packs_key_parses_to_what_it_was_made_of(epoch: int, name: Digest) -> None:
    assert keys.parse_pack(keys.check_key(keys.pack(epoch, name))) == (epoch, name)


@given(epochs, nonces)
def test_a_fulls_prefix_parses_to_its_epoch(epoch: int, nonce: str) -> None:
    assert keys.parse_full_prefix(keys.check_key(keys.full_prefix(epoch, nonce))) == epoch


@given(st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1))
def test_log_keys_sort_as_their_numbers_do(a: int, b: int) -> None:
    assert (keys.log(a) < keys.log(b)) == (a < b)


@given(st.text())
def test_an_accepted_key_is_a_plain_relative_path(text: str) -> None:
    if keys.is_key(text):
        assert not text.startswith("/")
        assert not {"", ".", ".."} & set(text.split("/"))
        assert "\0" not in text
    else:
        with pytest.raises(InvalidKey):
            keys.check_key(text)


@pytest.mark.parametrize("text", ["", "a/b", "..", ".hidden", "x" * 65, "a b", "a\n"])
def test_an_island_id_is_a_plain_name(text: str) -> None:
    with pytest.raises(InvalidKey):
        keys.island(text)
