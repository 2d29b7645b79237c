"""Where the service listens, and whom it answers."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path

TOKEN_LEAST = 16  # characters: shorter ones can be guessed
_TOKEN_MOST = 512


class BindRefused(Exception):
    """The service would answer anybody who can reach this host."""


class TokenUnfit(Exception):
    """A token file that cannot or must not be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceConfig:
    """What an operator chooses.

    Without a token only programs of this host are answered, unless `proxy_authenticates` says that
    whatever reaches this port has been asked who it is.  Without a token a request must also name a
    `Host` of this machine, or one of `hosts`: else a page elsewhere could read the run by a name
    that it points here.  `store_limit_s` bounds what a request waits for the store.
    """

    host: str = "127.0.0.1"
    port: int = 8010
    token: str | None = field(default=None, repr=False)
    proxy_authenticates: bool = False
    hosts: tuple[str, ...] = ()
    store_limit_s: float = 10.0
    listeners: int = 64
    verifications: int = 4

    def __post_init__(self) -> None:
        if self.token is not None and not TOKEN_LEAST <= len(self.token) <= _TOKEN_MOST:
            rule = f"expected a token of {TOKEN_LEAST} to {_TOKEN_MOST} characters"
            raise TokenUnfit(f"{rule}, found {len(self.token)}")
        if self.token is not None and not (self.token.isascii() and self.token.isprintable()):
            raise TokenUnfit("expected a token of printable ASCII")
        if self.token is None and not self.proxy_authenticates and not is_loopback(self.host):
            raise BindRefused(
                f"{self.host} can be reached from other hosts, and there is no token: "
                "give --token-file, or listen on 127.0.0.1 behind a proxy or a tunnel, or say with "
                "--proxy-authenticates that a proxy asks everybody who they are"
            )


def is_loopback(host: str) -> bool:
    """Whether only programs of this host reach what listens there."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def read_token(path: Path) -> str:
    """Return the one word in a file.  Raises TokenUnfit."""
    try:
        with path.open("rb") as file:
            data = file.read(_TOKEN_MOST + 2)
    except OSError as error:
        raise TokenUnfit(f"{path}: {error.strerror or error}") from error
    words = data.decode("ascii", errors="replace").split()
    if len(words) != 1 or len(data) > _TOKEN_MOST + 1:
        raise TokenUnfit(f"{path}: expected one word of at most {_TOKEN_MOST} characters")
    return words[0]
