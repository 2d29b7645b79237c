"""How a publisher behaves."""

from __future__ import annotations

from dataclasses import dataclass, field

from skerry.codec.level import Level
from skerry.publisher.levels import LevelSetting
from skerry.publisher.threads import usable_cpus
from skerry.publisher.upkeep import UpkeepPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class PublisherConfig:
    """Settings of one publisher.

    An **anchor** is written when either limit is reached: `anchor_versions` patches in a row, or
    patches of more than `anchor_ratio` times the full size together.  None turns a limit off.
    `verify` decodes every patch again before it is committed; `writer` names this process in
    records.

    `threads` encode and decode, by default one for each usable CPU.  `level` is that of every
    patch, or "auto": the one that brings it to followers soonest, at a link of `link_mbit` (that of
    the slowest island) or else at the rate that uploads are seen to have.

    `upkeep` compacts and collects the run beside publishing; None leaves that to others.
    """

    writer: str = "publisher"
    verify: bool = True
    anchor_versions: int | None = 100
    anchor_ratio: float | None = 2.0
    threads: int = field(default_factory=usable_cpus)
    level: LevelSetting = "auto"
    link_mbit: float | None = None
    upkeep: UpkeepPolicy | None = None

    def __post_init__(self) -> None:
        if not self.writer:
            raise ValueError("writer: expected a name, found none")
        if self.anchor_versions is not None and self.anchor_versions < 1:
            raise ValueError(f"anchor_versions: expected 1 or more, found {self.anchor_versions}")
        if self.anchor_ratio is not None and not self.anchor_ratio > 0:
            raise ValueError(f"anchor_ratio: expected more than 0, found {self.anchor_ratio}")
        if self.threads < 1:
            raise ValueError(f"threads: expected 1 or more, found {self.threads}")
        if self.level != "auto":
            Level(self.level)  # of what is no level at all, ValueError
        if self.link_mbit is not None and not self.link_mbit > 0:
            raise ValueError(f"link_mbit: expected more than 0, found {self.link_mbit}")
