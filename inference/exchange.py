"""The directory that an agent and an engine process on one host share.

    token            who can read it may tell the engine which weights to serve
    records/<id>     updates on their way (`skerry.inference.record`); <id> is the digest of one

Whichever process comes first makes it.  Only its owner has access: put it where the engine's user
can read, and nobody else, in memory if there is enough (`/dev/shm`).
"""

from __future__ import annotations

import os
import re
import secrets
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from skerry.codec.digest import DigestStream
from skerry.codec.errors import FormatError
from skerry.inference.engine import WeightUpdate
from skerry.inference.record import pieces, read_record

VARIABLE = "SKERRY_ENGINE_DIR"
_TOKEN = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Exchange:
    """One such directory."""

    root: Path

    @classmethod
    def open(cls, root: Path) -> Exchange:
        """Make what is missing.  Raises OSError."""
        for directory in (root, root / "records"):
            directory.mkdir(mode=0o700, parents=directory == root, exist_ok=True)
        temporary = root / f".token-{secrets.token_hex(8)}"
        temporary.touch(0o600)
        temporary.write_text(secrets.token_hex(32))
        try:
            with suppress(FileExistsError):  # the other process was first
                os.link(temporary, root / "token")
        finally:
            temporary.unlink()
        return cls(root)

    def token(self) -> str:
        """Raises FormatError for a token that nobody here made."""
        text = (self.root / "token").read_text(encoding="ascii", errors="replace").strip()
        if not _TOKEN.fullmatch(text):
            raise FormatError(f"{self.root / 'token'} is not a token: 64 lower-case hex digits")
        return text

    def put(self, update: WeightUpdate) -> str:
        """Write an update and return its name.  Not durable: it is made anew after a crash."""
        temporary = self.root / "records" / f".{secrets.token_hex(8)}"
        stream = DigestStream()
        try:
            with temporary.open("wb") as file:
                for piece in pieces(update):
                    stream.update(piece)
                    file.write(piece)
            name = stream.digest()
            temporary.rename(self.root / "records" / name)
        finally:
            temporary.unlink(missing_ok=True)
        return name

    def get(self, name: str) -> WeightUpdate:
        """Read an update.  Raises FormatError, or OSError."""
        if not _NAME.fullmatch(name):  # it may come over the wire, and becomes part of a path
            raise FormatError(f"a record's name is 64 lower-case hex digits, found {name!r:.80}")
        return read_record(self.root / "records" / name)

    def drop(self, *, but: str | None = None) -> None:
        """Remove every update except `but`."""
        for path in (self.root / "records").iterdir():
            if path.name != but:
                path.unlink(missing_ok=True)
