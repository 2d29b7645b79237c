"""Object stores, and the addresses they are opened by."""

from __future__ import annotations

from pathlib import Path
from threading import Lock
from urllib.parse import unquote, urlsplit

from skerry.bulletin.errors import UnsupportedStore
from skerry.bulletin.store import ObjectStore
from skerry.bulletin.stores.local import LocalStore
from skerry.bulletin.stores.memory import MemoryStore

__all__ = ["LocalStore", "MemoryStore", "open_store"]

_SUPPORTED = "supported are file:///absolute/path, a plain path, and memory://name"

_memory: dict[str, MemoryStore] = {}
_memory_lock = Lock()


def open_store(url: str) -> ObjectStore:
    """Return the store at `url`; nothing is read or created yet.  Raises UnsupportedStore.

    `memory://name` is one store per name and process.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        if not url or "\0" in url:
            raise UnsupportedStore(f"expected an address, found {url!r:.80}; {_SUPPORTED}")
        return LocalStore(Path(url))
    if scheme == "memory":
        if not rest or "/" in rest:
            raise UnsupportedStore(f"expected memory://name, found {url!r:.80}")
        with _memory_lock:
            return _memory.setdefault(rest, MemoryStore())
    if scheme == "file":
        parts = urlsplit(url)
        path = unquote(parts.path, errors="strict")
        if parts.netloc or parts.query or parts.fragment or not path or "\0" in path:
            raise UnsupportedStore(f"expected file:///absolute/path, found {url!r:.80}")
        return LocalStore(Path(path))
    raise UnsupportedStore(f"no store for {scheme}://; {_SUPPORTED}")
