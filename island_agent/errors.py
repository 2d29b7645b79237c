"""Everything an island can refuse or fail at, and who acts on it.

IslandError
├── MirrorBusy             another process holds the directory         the operator: one agent each
├── MirrorDamaged          its bytes are not the version it claims     the agent: anchors anew
├── JournalInvalid         a torn or foreign install record            the agent: discards it
├── RunMismatch            the log belongs to another run              the operator
├── RunUnknown             files, and no marker that says of which run the operator: may they go?
├── LogBehind              the log shows less than the island holds    nobody: waits for the log
├── TargetRefused          the wanted version is no target             the operator
├── VersionCollected       a planned object was collected meanwhile    the agent: plans anew
├── ChainRefused           the log's chain contradicts itself          the publisher
├── FetchError
│   ├── ObjectUnavailable  not readable within the stated attempts     the agent: tries later
│   ├── ObjectCorrupt      read, but of the wrong size or digest       the agent: another path
│   └── SpoolFull          the objects exceed the spool's limit        the operator: the limit
├── SettingsInvalid        a setting is wrong, or unknown              the operator
├── SelectionRefused       the wanted part does not fit the layout     the operator
├── LeavesUnknown          nothing signed says what a part must be     the agent: another way
├── DiskError              this host's disk did not take it; also an OSError
│   ├── DiskFull           bytes needed and free are in the message    the operator: room
│   └── DiskDenied         read-only, or no permission                 the operator: mount, modes
├── NoRoom                 a relay's cache cannot take an object       the operator: limit or disk
├── Crowded                too many ask a relay at one time            nobody: they ask again
├── Unreferenced           no record read so far names the object      the agent: reads on
├── PeerLost               an agent of a group does not answer         the operator: that agent
├── PullRefused            the directory to pull into is taken         the operator: another one
└── Stopped                a shutdown was asked for                    nobody

`who_acts` extends the table to the errors of other components.
"""

from __future__ import annotations

from pathlib import Path

from skerry.bulletin.errors import BulletinError
from skerry.codec.errors import CodecError
from skerry.inference.engine import EngineError
from skerry.inference.errors import RolloutError


class IslandError(Exception):
    """Base of every error raised by skerry.island_agent."""

    acts = "the agent"


class MirrorBusy(IslandError):
    """Another process holds the mirror directory."""

    acts = "the operator"


class MirrorDamaged(IslandError):
    """The mirror's bytes are not those of the version that its marker names."""


class JournalInvalid(IslandError):
    """The bytes are not a complete install record of this mirror."""

    def __init__(self, rule: str) -> None:
        super().__init__(rule)
        self.rule = rule


class RunMismatch(IslandError):
    """The log belongs to another run than the mirror."""

    acts = "the operator"


class RunUnknown(IslandError):
    """The mirror holds files, and no readable marker says which run they belong to."""

    acts = "the operator"


class LogBehind(IslandError):
    """The log does not show the version that the island holds: never a reason to go back."""

    acts = "nobody: the island waits for the log"


class TargetRefused(IslandError):
    """The wanted version is abandoned or older than what is held."""

    acts = "the operator"


class VersionCollected(IslandError):
    """An object that was planned with has been retired since, and is not there any more."""

    acts = "the agent: it plans anew from the newest log"

    def __init__(self, version: int, name: str) -> None:
        super().__init__(f"on the way to version {version}: {name} was collected meanwhile")
        self.version = version
        self.name = name


class ChainRefused(IslandError):
    """The steps of the log do not lead from what is held to what is wanted."""

    acts = "the publisher"


class FetchError(IslandError):
    """Base of what downloading an object can fail at; names the key."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"{key}: {problem}")
        self.key = key


class ObjectUnavailable(FetchError):
    """The object could not be read within the stated attempts."""


class ObjectCorrupt(FetchError):
    """The object was read whole and is not what the log promises."""


class SpoolFull(FetchError):
    """The objects of one install exceed the spool's limit."""

    acts = "the operator"


class SettingsInvalid(IslandError):
    """A setting breaks a rule; says where its value came from."""

    acts = "the operator: mend that setting"

    def __init__(self, source: str, name: str, rule: str) -> None:
        super().__init__(": ".join(part for part in (source, name, rule) if part))
        self.source = source
        self.name = name
        self.rule = rule


class SelectionRefused(IslandError):
    """The part that is to be mirrored does not fit the layout, the directory or the engines."""

    acts = "the operator: another selection, or another directory"


class LeavesUnknown(IslandError):
    """No manifest and no verified file says which leaves a version has."""


class DiskError(IslandError, OSError):
    """This host's disk did not do what was asked; nothing that is served has changed."""

    acts = "the operator: the disk of this host"


class DiskFull(DiskError):
    """A write needs more room than there is: on the file system, in a quota, or for one file."""

    acts = "the operator: make room; the island then goes on by itself"

    def __init__(self, where: Path, what: str, *, needed: int | None, free: int, why: str) -> None:
        known = "an unknown number of" if needed is None else f"{needed}"
        super().__init__(f"{where}: {what} needs {known} bytes, {free} are free: {why}")
        self.needed = needed
        self.free = free


class DiskDenied(DiskError):
    """The file system is read-only here, or this user may not write."""

    acts = "the operator: permissions or mount of this host; the island then goes on by itself"

    def __init__(self, where: Path, what: str, *, needed: int | None, free: int, why: str) -> None:
        size = "" if needed is None else f" of {needed} bytes"
        super().__init__(f"{where}: {what}{size} may not be written, {free} bytes are free: {why}")
        self.needed = needed
        self.free = free


class NoRoom(IslandError):
    """A relay's cache cannot take an object: its limit, or the disk."""

    acts = "the operator: the relay's limit, or room on its disk; neighbours read past it"

    def __init__(self, name: str, *, needed: int, free: int) -> None:
        super().__init__(f"{name}: {needed} bytes needed, {free} free")
        self.needed = needed
        self.free = free


class Crowded(IslandError):
    """So many wait for a thread of the relay that no more are let in."""

    acts = "nobody: a neighbour asks again, or reads past the relay"


class Unreferenced(IslandError):
    """No record that the agent has read names the object, and its key does not say what it is."""

    acts = "the agent: it reads the newest records"


class PeerLost(IslandError):
    """Another agent of a group gave no answer, or refused to."""

    acts = "the operator: is that agent there, with the same groups and the same token?"


class PullRefused(IslandError):
    """The directory to pull into holds something else."""

    acts = "the operator"


class Stopped(IslandError):
    """A shutdown was asked for while work was under way."""

    acts = "nobody"


def who_acts(error: BaseException) -> str:
    """Say in words whose move it is after `error`."""
    match error:
        case IslandError():
            return error.acts
        case BulletinError() | CodecError():
            return "the agent tries another path, then the publisher"
        case EngineError() | RolloutError():
            return "the agent loads the engine anew"
        case OSError():
            return "the operator: disk or network of this host"
    return "the developers: an error that was not foreseen"
