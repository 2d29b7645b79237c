"""What the gate does with a request, as a pure function of what is known.

The rules, in their order: an engine serves an accepted version: forward to the preferred one; some
accepted version may yet come: wait; else it is gone.  Without a serving engine none of them holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from skerry.inference.accepted import AcceptedVersions


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownVersions:
    """What the agent read in the bulletin: newest committed, oldest not collected, abandoned."""

    newest: int | None = None
    oldest: int = 0
    abandoned: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineView:
    """One engine, or one group that must be one version, as the gate sees it.

    `version` None serves nothing.  `target` is the version of a swap under way: new requests that
    do not accept it are kept out, or they could delay the swap for ever.
    """

    version: int | None
    target: int | None = None
    running: int = 0
    error: str | None = None

    def takes(self, accepted: AcceptedVersions, *, pinned: bool = False) -> bool:
        """Return whether a new request may start here now; a pinned one outlives no swap."""
        return (
            self.version is not None
            and accepted.contains(self.version)
            and (self.target is None or (not pinned and accepted.contains(self.target)))
        )


@dataclass(frozen=True, slots=True)
class Forward:
    """Start on `engine`, which serves `version`."""

    engine: str
    version: int


@dataclass(frozen=True, slots=True)
class Wait:
    """An accepted version may come: 409 when the wait is over."""


@dataclass(frozen=True, slots=True)
class Gone:
    """No accepted version will come: 410."""


@dataclass(frozen=True, slots=True)
class Unavailable:
    """No engine serves anything: 503 when the wait is over."""


Decision = Forward | Wait | Gone | Unavailable


def decide(
    accepted: AcceptedVersions,
    engines: Mapping[str, EngineView],
    known: KnownVersions,
    *,
    pinned: bool = False,
) -> Decision:
    """Apply the rules.  Of equal engines the one with the fewest running requests is taken."""
    takers = {name: e for name, e in engines.items() if e.takes(accepted, pinned=pinned)}
    version = accepted.choose([e.version for e in takers.values() if e.version is not None])
    if version is not None:
        fitting = [(e.running, name) for name, e in takers.items() if e.version == version]
        return Forward(min(fitting)[1], version)
    served = [e.version for e in engines.values() if e.version is not None]
    if not served:
        return Unavailable()
    if any(accepted.contains(v) for v in served):
        return Wait()  # the engine leaves an accepted version: only if its swap succeeds is it gone
    above = max(*served, known.oldest - 1)  # a collected version cannot be fetched any more
    if accepted.has_any(above=above, excluded=known.abandoned):
        return Wait()
    return Gone()
