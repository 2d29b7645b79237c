"""Ed25519 keys: the writer's signer, and the public key that readers trust.

Text forms: a public key is 64, a signature 128 lower-case hex digits; a private key is a PEM file
(PKCS8, not encrypted) that nobody but its owner may read.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from skerry.bulletin.errors import KeyFileInvalid
from skerry.codec.errors import FormatError

_KEY = re.compile(r"[0-9a-f]{64}")
_SIGNATURE = re.compile(r"[0-9a-f]{128}")
_FILE_LIMIT_BYTES = 4096


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A public key.  `PublicKey.parse(str(k)) == k` for every key."""

    hex: str

    @classmethod
    def parse(cls, text: object) -> PublicKey:
        """Raises FormatError for anything but 64 lower-case hex digits."""
        if not isinstance(text, str) or not _KEY.fullmatch(text):
            raise FormatError(f"a public key is 64 lower-case hex digits, found {text!r:.80}")
        return cls(text)

    def verifies(self, data: bytes, signature: str) -> bool:
        """Return whether `signature` was made over `data` by this key's owner."""
        try:
            key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(self.hex))
            key.verify(bytes.fromhex(parse_signature(signature)), data)
        except (InvalidSignature, FormatError, ValueError):
            return False
        return True

    def __str__(self) -> str:
        return self.hex


def parse_signature(text: object) -> str:
    """Raises FormatError for anything but 128 lower-case hex digits."""
    if not isinstance(text, str) or not _SIGNATURE.fullmatch(text):
        raise FormatError(f"a signature is 128 lower-case hex digits, found {text!r:.80}")
    return text


class Signer:
    """A private key.  Neither its text nor its repr shows it."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public_key = PublicKey(key.public_key().public_bytes_raw().hex())

    @classmethod
    def generate(cls) -> Signer:
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def from_seed(cls, seed: bytes) -> Signer:
        """Return the signer of a 32-byte seed.  Raises ValueError."""
        return cls(Ed25519PrivateKey.from_private_bytes(seed))

    @classmethod
    def load(cls, path: Path) -> Signer:
        """Read a key file.  Raises KeyFileInvalid, also when others may read the file."""
        try:
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                data = file.read(_FILE_LIMIT_BYTES + 1)
        except OSError as error:
            raise KeyFileInvalid(f"{path}: {error.strerror}") from error
        if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o077:
            mode = stat.S_IMODE(status.st_mode)
            raise KeyFileInvalid(f"{path}: expected a file of mode 0600, found {mode:04o}")
        try:
            key = load_pem_private_key(data[:_FILE_LIMIT_BYTES], password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise KeyFileInvalid(f"{path}: expected an unencrypted PEM private key") from error
        if not isinstance(key, Ed25519PrivateKey):
            raise KeyFileInvalid(f"{path}: expected an Ed25519 key")
        return cls(key)

    def save(self, path: Path) -> None:
        """Write a new key file of mode 0600.  Raises KeyFileInvalid if `path` exists."""
        pem = self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(fd, "wb") as file:
                file.write(pem)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise KeyFileInvalid(f"{path}: {error.strerror}") from error

    def sign(self, data: bytes) -> str:
        return self._key.sign(data).hex()

    def __repr__(self) -> str:
        return f"Signer({self.public_key})"
