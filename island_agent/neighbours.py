"""An island's place among its neighbours: which relays it reads through, and whether it is one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from skerry.bulletin.reader import BulletinReader
from skerry.bulletin.signing import PublicKey
from skerry.bulletin.stores import Relayed, open_relayed
from skerry.inference.engine import Engine
from skerry.island_agent.agent import Agent
from skerry.island_agent.config import AgentConfig
from skerry.island_agent.groups.groups import Membership
from skerry.island_agent.relay import Relay
from skerry.island_agent.relay_config import RelayConfig
from skerry.island_agent.relay_store import RelayStore
from skerry.island_agent.room import writing
from skerry.island_agent.watch import LogWatcher


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbours:
    """`upstream` are addresses of relays, `http://host:port/bulletin`, the nearest first.

    With `relay` the agent is one itself, and keeps what neighbours ask for in `DIR/relay`, on disk
    also where the mirror is in memory.
    """

    upstream: Sequence[str] = ()
    relay: RelayConfig | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """An agent that is ready to be served, and what runs beside it."""

    agent: Agent
    relay: Relay | None
    watchers: Sequence[LogWatcher]


def join(
    config: AgentConfig,
    bulletin: str,
    neighbours: Neighbours,
    *,
    pinned_key: PublicKey | None = None,
    engines: Mapping[str, Engine] | None = None,
    membership: Membership | None = None,
) -> Joined:
    """Put an agent together that follows the run at `bulletin`.

    Raises UnsupportedStore, DiskError where a relay cannot keep anything, or MirrorBusy where
    another one does.
    """
    store = road = open_relayed(bulletin, neighbours.upstream, pinned=pinned_key is not None)
    relay = None
    if neighbours.relay is not None:
        directory = config.directory / "relay"
        with writing(directory, "the relay's cache"):
            relay = Relay(road, directory, neighbours.relay, pinned_key=pinned_key)
        store = RelayStore(relay)

    def doubt() -> None:
        if isinstance(road, Relayed):
            road.distrust()
        if relay is not None:
            relay.slots.doubt()

    agent = Agent(
        config,
        BulletinReader(store, pinned_key=pinned_key),
        engines=engines,
        membership=membership,
        on_records=_nothing if relay is None else relay.learned,
        on_doubt=doubt,
    )
    if relay is not None:
        relay.news = agent.nudge
    watchers = [LogWatcher(neighbours.upstream, agent)] if neighbours.upstream else []
    return Joined(agent=agent, relay=relay, watchers=watchers)


def _nothing(*args: object) -> None:
    """Nobody is told."""
