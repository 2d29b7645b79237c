"""Keys and key files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from hypothesis import given
from hypothesis import strategies as st

from skerry.bulletin.errors import KeyFileInvalid
from skerry.bulletin.signing import PublicKey, Signer
from skerry.codec.errors import FormatError
from tests.bulletin.log_builder import OTHER_SIGNER, SIGNER


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_a_signature_verifies_its_own_data_and_key_only(data: bytes, other: bytes) -> None:
    signature = SIGNER.sign(data)
    assert SIGNER.public_key.verifies(data, signature)
    assert SIGNER.public_key.verifies(other, signature) == (data == other)
    assert not OTHER_SIGNER.public_key.verifies(data, signature)


def test_what_is_no_signature_verifies_nothing() -> None:
    for text in ("", "0" * 128, "F" * 128, "x" * 128, "0" * 127):
        assert not SIGNER.public_key.verifies(b"data", text)
        assert not PublicKey("0" * 64).verifies(b"data", text)


@pytest.mark.parametrize("text", ["", "0" * 63, "A" * 64, "0" * 65, None, 5, "0" * 64 + "\n"])
def test_a_public_key_has_one_spelling(text: object) -> None:
    assert PublicKey.parse(str(SIGNER.public_key)) == SIGNER.public_key
    with pytest.raises(FormatError):
        PublicKey.parse(text)


def test_a_key_file_is_private_and_round_trips(tmp_path: Path) -> None:
    path = tmp_path / "run.pem"
    signer = Signer.generate()
    signer.save(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_text().startswith("-----BEGIN PRIVATE KEY-----")
    assert Signer.load(path).public_key == signer.public_key
    assert Signer.load(path).sign(b"x") == signer.sign(b"x")


def test_saving_never_overwrites_a_key(tmp_path: Path) -> None:
    path = tmp_path / "run.pem"
    SIGNER.save(path)
    with pytest.raises(KeyFileInvalid, match=r"run\.pem"):
        OTHER_SIGNER.save(path)
    assert Signer.load(path).public_key == SIGNER.public_key


def test_a_key_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.pem"
    SIGNER.save(path)
    for mode in (0o640, 0o604, 0o660, 0o777):
        path.chmod(mode)
        with pytest.raises(KeyFileInvalid, match="0600"):
            Signer.load(path)


def test_what_is_no_usable_key_is_refused(tmp_path: Path) -> None:
    x25519 = X25519PrivateKey.generate()
    other = x25519.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    SIGNER.save(tmp_path / "good.pem")
    key = load_pem_private_key((tmp_path / "good.pem").read_bytes(), None)
    encrypted = key.private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")
    )
    for data in (b"", b"not PEM", other, encrypted, b"x" * 10_000):
        path = tmp_path / "bad.pem"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.write(fd, data)
        os.close(fd)
        with pytest.raises(KeyFileInvalid, match=r"bad\.pem"):
            Signer.load(path)
    with pytest.raises(KeyFileInvalid, match="missing"):
        Signer.load(tmp_path / "missing")


def test_the_private_key_is_not_in_the_repr() -> None:
    assert repr(SIGNER) == f"Signer({SIGNER.public_key.hex})"
