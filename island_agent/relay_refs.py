"""What a relay hands on: which keys, and what the log that its agent has verified says of them."""

from __future__ import annotations

from threading import Lock

from skerry.bulletin import keys
from skerry.bulletin.errors import InvalidKey
from skerry.bulletin.records import Commit, Full, ObjectRef, Skip
from skerry.bulletin.state import LogState
from skerry.island_agent.errors import Unreferenced

_NAMED = 262_144  # objects that are remembered; others are asked for first


class References:
    """Objects that records name.  Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._sizes: dict[str, int | None] = {}  # of what records name; None: not said there
        self._fulls: dict[str, Full] = {}  # by prefix
        self._commits = self._skips = 0  # how many of the log's are in these two

    def learned(self, state: LogState) -> None:
        """Take over what is new in a later state of the log."""
        with self._lock:
            commits = state.commits
            for number in range(self._commits, len(commits)):
                self._note(commits[number])
            for at in range(self._skips, len(state.skips)):
                self._note(state.skips[at])
            self._commits, self._skips = len(commits), len(state.skips)

    def size(self, key: str) -> int | None:
        """Return the size of a pack, None if it is not remembered."""
        with self._lock:
            return self._sizes.get(key)

    def names(self, key: str) -> bool:
        """Say whether a record is known to name the object."""
        with self._lock:
            return key in self._sizes or "/".join(key.split("/", 2)[:2]) in self._fulls

    def file(self, key: str) -> ObjectRef:
        """Return what one file of a full version must be.  Raises Unreferenced."""
        prefix = "/".join(key.split("/", 2)[:2])
        name = key[len(prefix) + 1 :]
        with self._lock:
            full = self._fulls.get(prefix)
        for file in () if full is None else full.files:
            if file.name == name:
                assert full is not None
                return full.ref(file)
        raise Unreferenced(key)

    def _note(self, what: Commit | Skip) -> None:
        self._sizes |= {pack.key: pack.size for pack in what.packs}
        if isinstance(what, Commit):
            self._sizes |= {keys.layout(what.layout): None, keys.manifest(what.manifest): None}
            if what.full is not None:
                self._fulls[what.full.prefix] = what.full
        while len(self._sizes) > _NAMED:
            del self._sizes[next(iter(self._sizes))]


def kind_of(key: str) -> str | None:
    """Return which part of a bulletin a relay serves the key from, None: from none.

    Status of islands, scratch objects and whatever else lies there are not handed on.
    """
    try:
        keys.check_key(key)
        match key.partition("/")[0] + "/":
            case keys.LOG_PREFIX:
                keys.parse_log(key)
                return "log"
            case keys.CHECKPOINT_PREFIX:
                keys.parse_checkpoint(key)
                return "passing"
            case keys.FULL_PREFIX:
                prefix, _, name = key[len(keys.FULL_PREFIX) :].partition("/")
                keys.parse_full_prefix(keys.FULL_PREFIX + prefix)
                return "object" if name else None
    except InvalidKey:
        return None
    if key in (keys.HINT, keys.COST):
        return "passing"
    return None if keys.named_digest(key) is None else "object"
