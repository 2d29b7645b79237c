"""Who is in which group: the same on every agent, or they do not talk to each other.

Members are fixed by configuration.  A quorum needs agents that are known, and the status objects
in the bulletin, which anybody may write, are never trusted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import urlsplit

from skerry.codec.digest import Digest, digest_bytes
from skerry.codec.strict_json import canonical

MAX_AGENTS = 64
MAX_GROUPS = 64
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class Roster:
    """`agents` are addresses by agent, `groups` the engines of each agent by group.

    An agent's name is its island's name in the bulletin.
    """

    agents: Mapping[str, str]
    groups: Mapping[str, Mapping[str, tuple[str, ...]]]

    @classmethod
    def parse(cls, peers: Sequence[str], groups: Sequence[str]) -> Roster:
        """Read `agent=http://host:port` and `group=agent/engine+agent/engine`.

        Raises ValueError.
        """
        agents: dict[str, str] = {}
        for text in peers:
            name, address = _split(text, "a peer", "agent=http://host:port")
            _once(name, agents, "agent")
            parts = urlsplit(address)
            if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
                raise ValueError(f"agent {name}: expected http://host:port, found {address!r:.80}")
            agents[name] = address.rstrip("/")
        found: dict[str, Mapping[str, tuple[str, ...]]] = {}
        taken: set[tuple[str, str]] = set()
        for text in groups:
            name, members = _split(text, "a group", "name=agent/engine+agent/engine")
            _once(name, found, "group")
            found[name] = _members(name, members, agents, taken)
        if len(agents) > MAX_AGENTS or len(found) > MAX_GROUPS:
            raise ValueError(f"expected at most {MAX_AGENTS} agents and {MAX_GROUPS} groups")
        return cls(agents=agents, groups=found)

    @cached_property
    def digest(self) -> Digest:
        """What two agents compare: groups and members, not where they are reached."""
        named = {
            group: {agent: list(engines) for agent, engines in members.items()}
            for group, members in self.groups.items()
        }
        return digest_bytes(canonical(named))

    def of(self, agent: str) -> dict[str, tuple[str, ...]]:
        """Return the engines that an agent has in each group."""
        return {name: m[agent] for name, m in self.groups.items() if agent in m}


def _members(
    group: str, text: str, agents: Mapping[str, str], taken: set[tuple[str, str]]
) -> dict[str, tuple[str, ...]]:
    members: dict[str, tuple[str, ...]] = {}
    for item in text.split("+"):
        agent, slash, engine = item.partition("/")
        if not slash or not _NAME.fullmatch(engine):
            raise ValueError(f"group {group}: expected agent/engine, found {item!r:.80}")
        if agent not in agents:
            raise ValueError(f"group {group}: {agent!r:.80} is no peer")
        if (agent, engine) in taken:
            raise ValueError(f"group {group}: {item} is in a group already")
        taken.add((agent, engine))
        members[agent] = (*members.get(agent, ()), engine)
    return {agent: tuple(sorted(members[agent])) for agent in sorted(members)}


def _split(text: str, what: str, form: str) -> tuple[str, str]:
    name, equals, rest = text.partition("=")
    if not equals or not _NAME.fullmatch(name) or not rest:
        raise ValueError(f"{what}: expected {form}, found {text!r:.80}")
    return name, rest


def _once(name: str, among: Mapping[str, object], what: str) -> None:
    if name in among:
        raise ValueError(f"{what} {name} is there twice")
