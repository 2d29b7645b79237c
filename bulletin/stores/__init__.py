"""Object stores, and the addresses they are opened by."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import unquote, urlsplit

from skerry.bulletin.errors import UnsupportedStore
from skerry.bulletin.store import ObjectStore
from skerry.bulletin.stores.local import LocalStore
from skerry.bulletin.stores.memory import MemoryStore
from skerry.bulletin.stores.metered import Metered, Usage
from skerry.bulletin.stores.mirrored import Mirrored
from skerry.bulletin.stores.relay_trust import RelayTrust
from skerry.bulletin.stores.relayed import Relayed
from skerry.bulletin.stores.retries import Retries, RetryConfig
from skerry.bulletin.stores.retrying import Retrying
from skerry.bulletin.stores.s3_address import S3Address, web_address

__all__ = [
    "LocalStore",
    "MemoryStore",
    "Metered",
    "Mirrored",
    "Relayed",
    "Retrying",
    "Usage",
    "open_relayed",
    "open_store",
]

_SUPPORTED = (
    "supported are s3://bucket/prefix, https://host/path (read-only), file:///absolute/path, "
    "a plain path, and memory://name"
)
_NEXT = re.compile(r",(?=[a-z0-9]+://)")  # a path may hold commas
_MIRROR_READ_S = 2.0  # then the next mirror is asked

_memory: dict[str, MemoryStore] = {}
_memory_lock = Lock()


def open_store(url: str) -> ObjectStore:
    """Return the store at `url`; nothing is read or created yet.  Raises UnsupportedStore.

    Several addresses with commas between them are mirrors of one bulletin: the first is written to,
    all are read from.  Stores that are reached over a network are asked again when they do not
    answer.  `memory://name` is one store per name and process.
    """
    urls = _NEXT.split(url)
    if len(urls) == 1:
        return _open(url, RetryConfig())
    return Mirrored([_open(one, RetryConfig(read_s=_MIRROR_READ_S)) for one in urls])


def open_relayed(
    url: str, relays: Sequence[str], *, pinned: bool = False, trust: RelayTrust | None = None
) -> ObjectStore:
    """Return the store at `url`, read through relays first, in the order of their addresses.

    `pinned`: the reader knows the run's key.

    Raises UnsupportedStore, also for a relay that is not at an http address.
    """
    store = open_store(url)
    trust = trust or RelayTrust()
    for relay in reversed(relays):
        if not relay.startswith(("http://", "https://")):
            raise UnsupportedStore(f"expected http://host:port/bulletin, found {relay!r:.80}")
        store = Relayed(_open_relay(relay, trust), store, trust, pinned=pinned)
    return store


def _open_relay(url: str, trust: RelayTrust) -> ObjectStore:
    parts = web_address(url, "the address of a relay")
    if not parts.path.strip("/"):
        raise UnsupportedStore(f"expected http://host:port/bulletin, found no path: {url:.80}")
    config = RetryConfig(read_s=_MIRROR_READ_S)
    retries = Retries(config)
    # However a relay deals out one request, its time is bounded.
    within = Retries(replace(config, longest_read_s=trust.patience_s), budget=retries.budget)
    web = _needs("http").WebStore(url, retries=within, allowed_s=trust.allowed_s)
    return Retrying(web, retries)


def _open(url: str, config: RetryConfig) -> ObjectStore:
    scheme, separator, _ = url.partition("://")
    if not separator:
        if not url or "\0" in url:
            raise UnsupportedStore(f"expected an address, found {url!r:.80}; {_SUPPORTED}")
        return LocalStore(Path(url))
    match scheme:
        case "memory":
            return _open_memory(url)
        case "file":
            return _open_file(url)
        case "s3":
            address = S3Address.parse(url)
            retries = Retries(config)
            return Retrying(_needs("s3").S3Store(address, retries=retries), retries)
        case "http" | "https":
            web_address(url, "the address of the bulletin")
            retries = Retries(config)
            return Retrying(_needs("http").WebStore(url, retries=retries), retries)
    raise UnsupportedStore(f"no store for {scheme:.20}://; {_SUPPORTED}")


def _open_memory(url: str) -> MemoryStore:
    name = url.removeprefix("memory://")
    if not name or "/" in name:
        raise UnsupportedStore(f"expected memory://name, found {url!r:.80}")
    with _memory_lock:
        return _memory.setdefault(name, MemoryStore())


def _open_file(url: str) -> LocalStore:
    parts = urlsplit(url)
    try:
        path = unquote(parts.path, errors="strict")
    except UnicodeDecodeError:
        path = ""
    if parts.netloc or parts.query or parts.fragment or not path or "\0" in path:
        raise UnsupportedStore(f"expected file:///absolute/path, found {url!r:.80}")
    return LocalStore(Path(path))


def _needs(extra: str) -> Any:
    """Return the module of a store that an extra brings the packages for."""
    module = {"s3": "s3", "http": "web_store"}[extra]
    try:
        return import_module(f"skerry.bulletin.stores.{module}")
    except ModuleNotFoundError as error:
        raise UnsupportedStore(
            f"{extra}:// needs the package {error.name}: pip install 'skerry[{extra}]'"
        ) from None
