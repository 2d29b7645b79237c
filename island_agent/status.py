"""What an island tells about itself: one mutable record, written by the agent, read by anybody.

`to_json` never waits for anything, so it can be served while a version is decoded.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal

from skerry.codec.digest import Digest
from skerry.island_agent.errors import who_acts
from skerry.island_agent.fetch import FetchProgress
from skerry.island_agent.groups.shown import GroupStatus
from skerry.island_agent.marker import Held
from skerry.island_agent.plan import Target
from skerry.island_agent.stopwatch import Phase

PHASES = (
    "opening", "idle", "observing", "fetching", "staging", "installing", "grouping", "retrying",
    "stopped",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallReport:
    """One finished install.  Seconds by step, and by phase with bytes; `nbytes` were read from the
    store, `changed` words were written, None for a full version, or where a later pass finished
    it."""

    version: int
    base: int | None
    steps: int
    full: bool
    digest: Digest
    nbytes: int
    changed: int | None
    fetch_s: float
    stage_s: float
    journal_s: float
    apply_s: float
    pause_s: float
    at_unix_s: float
    phases: Mapping[str, Phase] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The last thing that went wrong, and whose move it is."""

    message: str
    kind: str
    acts: str
    doing: str
    at_unix_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInstall:
    """An engine's last switch that succeeded: by a patch, or by loading the mirror."""

    version: int
    kind: Literal["patch", "load"]
    pause_s: float
    at_unix_s: float


@dataclass(slots=True, kw_only=True)
class EngineStatus:
    """One engine: what it serves (None: nothing), and what is wrong with it now (None: nothing).

    `last_error` stays when it is well again.  `pause_s` passed in its last switch from one token to
    the next; of these `scatter_s` while it wrote words, `resume_s` after that.
    """

    version: int | None = None
    error: str | None = None
    pause_s: float | None = None
    scatter_s: float | None = None
    resume_s: float | None = None
    failures: int = 0
    last_error: str | None = None
    last_error_unix_s: float | None = None
    last_install: EngineInstall | None = None

    def fail(self, error: str, at_unix_s: float) -> None:
        self.error = self.last_error = error
        self.last_error_unix_s = at_unix_s
        self.failures += 1


@dataclass(slots=True, kw_only=True)
class ScrubStatus:
    """What the scrub has read, found and mended; `suspects` are the parts that wait for repair."""

    bytes: int = 0
    passes: int = 0
    damaged: int = 0
    repaired: int = 0
    failures: int = 0
    suspects: list[str] = field(default_factory=list)
    last_pass_unix_s: float | None = None


@dataclass(slots=True, kw_only=True)
class IslandStatus:
    """The island's state; fields are replaced, never mutated in place, except the counters."""

    island: str
    clock: Callable[[], float] = time.time
    history_limit: int = 32
    run: Digest | None = None
    held: Held | None = None
    damage: str | None = None
    newest: int | None = None
    newest_step: int | None = None
    wanted: int | None = None
    lag: int = 0
    phase: str = "opening"
    target: Target = field(default_factory=Target)
    within: Callable[[int], bool] = lambda version: True  # does it serve what the target asks for?
    part: str | None = None  # the selection, where only a part of every version is mirrored
    part_bytes: int | None = None
    groups: Callable[[], Mapping[str, GroupStatus]] = dict
    watched: bool = False  # a relay tells of new records, so looks at the log are rare
    stopping: bool = False
    passes: int = 0
    last_pass_unix_s: float | None = None
    bytes_total: int = 0
    reading: tuple[tuple[int | None, int], ...] = ()
    progress: FetchProgress = field(default_factory=FetchProgress)
    engines: dict[str, EngineStatus] = field(default_factory=dict)
    scrub: ScrubStatus = field(default_factory=ScrubStatus)
    installs: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    install_seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    install_bytes: Counter[str] = field(default_factory=Counter)
    history: deque[InstallReport] = field(init=False)
    errors: deque[Failure] = field(init=False)
    _ailing: dict[str, Failure] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.history = deque(maxlen=self.history_limit)
        self.errors = deque(maxlen=self.history_limit)

    def fail(self, error: BaseException, doing: str, who: str = "pass") -> None:
        """Record an error, counted for good; `who` has it until they are `well` again."""
        self.failures[type(error).__name__] += 1
        failure = Failure(
            message=str(error) or repr(error),
            kind=type(error).__name__,
            acts=who_acts(error),
            doing=doing,
            at_unix_s=self.clock(),
        )
        self._ailing.pop(who, None)
        self._ailing[who] = failure
        self.errors.append(failure)

    def well(self, who: str = "pass") -> None:
        """Note a success: of whoever had an error, and of nobody else."""
        self._ailing.pop(who, None)

    @property
    def last_error(self) -> Failure | None:
        """The newest error of those that somebody still has."""
        found = list(self._ailing.values())
        return found[-1] if found else None

    def installed(self, report: InstallReport) -> None:
        self.history.append(report)
        self.installs += 1
        for name, phase in report.phases.items():
            self.install_seconds[name] += phase.seconds
            self.install_bytes[name] += phase.nbytes

    @property
    def version(self) -> int | None:
        return None if self.held is None else self.held.version

    @property
    def ready(self) -> bool:
        """Whether an engine, or without any the mirror, has a version that the target allows."""
        return self.not_ready is None

    @property
    def not_ready(self) -> str | None:
        """Why the island is not ready; None when it is."""
        if self.stopping:
            return "it is being stopped"
        if self.engines:
            who, found = "no engine serves", [e.version for e in self.engines.values()]
        else:
            who, found = "the mirror does not hold", [self.version]
        versions = [version for version in found if version is not None]
        if not versions:
            return f"{who} any version"
        if not any(map(self.within, versions)):
            return f"{who} a version that the target allows"
        return None

    def to_json(self) -> Mapping[str, object]:
        """Return a JSON-ready snapshot."""
        return {
            "island": self.island,
            "run": self.run,
            "version": self.version,
            "weights": None if self.held is None else self.held.weights,
            "layout": None if self.held is None else self.held.layout,
            "newest": self.newest,
            "newest_step": self.newest_step,
            "wanted": self.wanted,
            "lag": self.lag,
            "target": self.target.to_json(),
            "partial": self.part is not None,
            "part": self.part,
            "part_bytes": self.part_bytes,
            "ready": self.ready,
            "not_ready": self.not_ready,
            "watched": self.watched,
            "phase": self.phase,
            "passes": self.passes,
            "last_pass_unix_s": self.last_pass_unix_s,
            "bytes_done": self.progress.job_bytes,
            "bytes_total": self.bytes_total,
            "damage": self.damage,
            "last_error": None if self.last_error is None else asdict(self.last_error),
            "failures": dict(self.failures),
            "errors": [asdict(failure) for failure in self.errors],
            "engines": {name: asdict(engine) for name, engine in self.engines.items()},
            "groups": {name: asdict(group) for name, group in self.groups().items()},
            "scrub": asdict(self.scrub),
            "installs": self.installs,
            "fetched_bytes": self.progress.bytes_read,
            "fetch_retries": self.progress.retries,
            "history": [asdict(report) for report in self.history],
        }
