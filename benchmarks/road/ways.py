"""One link, every way of sending versions over it, to one island or to several at once."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skerry.benchmarks.credentials import ACCESS_KEY, SECRET_KEY
from skerry.benchmarks.road.link import FAR, Link, LinkSpec, link
from skerry.benchmarks.road.messages import Child, child
from skerry.island_agent import AgentConfig

PATCH, XOR, FULL = "patch", "XOR + zstd-1 file", "full checkpoint"

ROUND_TRIPS = 4

Said = Mapping[str, Any]
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One version to all islands, or one download.  Seconds are since the commit (or the start).

    The slowest island counts for `arrived_s` and `served_s`, the longest pause, and the most memory
    that one took on top of what it had.  `wire_bytes` are those of all islands together.
    `publish_s` and `publish_cpu_s` come before the commit; `island_cpu_s` is the mean.
    """

    link: str
    congestion: str
    what: str
    islands: int
    version: int | None
    nbytes: int
    wire_bytes: int
    publish_s: float | None
    publish_cpu_s: float | None
    arrived_s: float
    served_s: float
    pause_s: float
    island_cpu_s: float
    island_peak_bytes: int
    limit_s: float
    phases: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is sent over what, to how many."""

    megabytes: float
    density: float
    versions: int
    islands: Sequence[int]
    ways: Sequence[str]
    in_memory: bool


class WrongWeights(RuntimeError):
    """An island ended with other weights than were sent: its figures mean nothing."""


def limit_s(spec: LinkSpec, nbytes: int, islands: int) -> float:
    """Return the physical limit: what all islands download over the bandwidth, and round trips."""
    return 8 * nbytes * islands / spec.bits_per_s + ROUND_TRIPS * spec.round_trip_s


def measure(
    name: str, spec: LinkSpec, controls: Sequence[str], settings: Settings, work: Path, tell: Tell
) -> Iterator[Way]:
    """Send versions over one link, by each congestion control.  Raises WrongWeights."""
    work.mkdir()
    with ExitStack() as stack:
        tell(f"{name}: the first version of a simulated model")
        site = _Site(stack, stack.enter_context(link(spec)), name, settings, work)
        for congestion in controls:
            site.use(congestion)
            for islands in settings.islands:
                for what, send in ((PATCH, site.patches), (XOR, site.files), (FULL, site.fulls)):
                    if what in settings.ways:
                        for way in send(islands):
                            tell(f"{name}, {congestion}, {islands} x {what}: {way.served_s:.2f} s")
                            yield way


class _Site:
    """A link with a trainer's side behind it."""

    def __init__(
        self, stack: ExitStack, made: Link, name: str, settings: Settings, work: Path
    ) -> None:
        self._stack, self._link, self._name, self._settings = stack, made, name, settings
        self._work = work
        self._congestion = ""
        self._environment = os.environ | {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        (work / "s3").mkdir()
        mbit = made.spec.bits_per_s / 1e6
        size = settings.megabytes, settings.density
        self._far = self._start(stack, made.far, "far", work / "s3", FAR, *size, mbit)
        self._run = self._far.hear()
        self._files = 0
        self._islands = 0
        self._seed: Path | None = None
        # Beside the store: what is there before anything is measured need not cross the link.
        self._checkpoint = work / "checkpoint"
        with ExitStack() as seeding:
            words = "full", self._run["url"], self._checkpoint, *self._run["files"]
            self._start(seeding, made.far, "files", *words).ask("go")

    def use(self, congestion: str) -> None:
        self._congestion = congestion
        self._link.use(congestion)
        self._far.ask("restart")

    def patches(self, islands: int) -> Iterator[Way]:
        """Yield each version that agents follow."""
        memory = ["--memory"] if self._settings.in_memory else []
        roots = [self._island() for _ in range(islands)]
        with ExitStack() as stack:
            for root in roots:
                stack.callback(shutil.rmtree, self._mirror(root), ignore_errors=True)
                shutil.copytree(self._mirror(self._seeded(memory)), self._mirror(root))
            count = self._settings.versions
            agents = [
                self._start(stack, self._link.near, "near", self._run["url"], root, count, *memory)
                for root in roots
            ]
            for agent in agents:
                agent.hear()
            for _ in range(count):
                before = self._link.bytes_to_near()
                made = self._far.ask("publish")
                yield self._way(PATCH, made, [agent.hear() for agent in agents], before)
            for agent in agents:
                agent.end()

    def _seeded(self, memory: Sequence[str]) -> Path:
        """Return an island that took a version beside the store; agents begin as copies of it."""
        if self._seed is None:
            self._seed = self._island()
            mirror = self._mirror(self._seed)
            self._stack.callback(shutil.rmtree, mirror, ignore_errors=True)
            with ExitStack() as seeding:
                words = "near", self._run["url"], self._seed, 0, *memory
                agent = self._start(seeding, self._link.far, *words)
                agent.hear()
                agent.end()
        return self._seed

    def files(self, islands: int) -> Iterator[Way]:
        """Yield each version that is sent as an XOR file."""
        count = self._settings.versions
        words = "xor", self._run["url"], self._checkpoint, self._files + 1, count
        with ExitStack() as stack:
            followers = [
                self._start(stack, self._link.near, "files", *words) for _ in range(islands)
            ]
            for follower in followers:
                follower.hear()
            for number in range(1, count + 1):
                before = self._link.bytes_to_near()
                made = self._far.ask("xor")
                self._files += 1
                heard = [follower.hear() for follower in followers]
                self._prove(heard, number % 2)
                yield self._way(XOR, made, heard, before)

    def fulls(self, islands: int) -> Iterator[Way]:
        """Yield one download of the checkpoint."""
        with ExitStack() as stack:
            children = []
            for _ in range(islands):
                words = "full", self._run["url"], self._island(), *self._run["files"]
                children.append(self._start(stack, self._link.near, "files", *words))
            before = self._link.bytes_to_near()
            for one in children:
                one.tell("go")
            heard = [one.hear() for one in children]
        self._prove(heard, 0)
        yield self._way(
            FULL,
            {"nbytes": self._run["nbytes"], "at": min(o["began"] for o in heard)},
            heard,
            before,
        )

    def _way(self, what: str, made: Said, heard: Sequence[Said], before: int) -> Way:
        slowest = max(heard, key=lambda one: one["served"])
        version = made.get("version")
        if what is PATCH and {one["version"] for one in heard} != {version}:
            raise WrongWeights(f"published {version}, served {[o['version'] for o in heard]}")
        return Way(
            link=self._name,
            congestion=self._congestion,
            what=what,
            islands=len(heard),
            version=version,
            nbytes=made["nbytes"],
            wire_bytes=self._link.bytes_to_near() - before,
            publish_s=made.get("seconds"),
            publish_cpu_s=made.get("cpu_s"),
            arrived_s=max(one["arrived"] for one in heard) - made["at"],
            served_s=slowest["served"] - made["at"],
            pause_s=max(one["pause_s"] for one in heard),
            island_cpu_s=sum(one["cpu_s"] for one in heard) / len(heard),
            island_peak_bytes=max(one["peak_bytes"] for one in heard),
            limit_s=limit_s(self._link.spec, made["nbytes"], len(heard)),
            phases=slowest.get("phases", {}),
        )

    def _prove(self, heard: Sequence[Said], state: int) -> None:
        expected = self._run["digests"][state]
        for one in heard:
            if one["digest"] != expected:
                raise WrongWeights(f"expected {expected}, an island has {one['digest']}")

    def _island(self) -> Path:
        self._islands += 1
        return self._work / f"island-{self._islands}"

    def _mirror(self, root: Path) -> Path:
        return AgentConfig(directory=root, in_memory=self._settings.in_memory).root

    def _start(
        self,
        stack: ExitStack,
        place: Callable[[Sequence[str]], list[str]],
        role: str,
        *words: object,
    ) -> Child:
        module = f"skerry.benchmarks.road.{role}"
        command = place([sys.executable, "-m", module, *map(str, words)])
        return stack.enter_context(child(command, self._environment))
