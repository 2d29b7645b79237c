"""What an agent shows of a group in `/status`, `/metrics` and `GET /control/groups`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatus:
    """One group as this agent sees it.

    `version` and `weights` are what it serves, as far as is known here; `serving` says whether all
    `engines` here do.  `stage` and `target` are of a switch under way here, `coordinator` is who
    was last obeyed, `coordinates` what this agent does as one.  `problem` is why its last attempt
    failed, `lost` are agents that do not answer, and why.
    """

    engines: Sequence[str]
    agents: Sequence[str]
    version: int | None
    weights: str | None
    in_doubt: bool
    serving: bool
    stage: str | None
    target: int | None
    coordinator: str | None
    coordinates: str
    problem: str | None
    lost: Mapping[str, str]
    released: int
    undone: int
