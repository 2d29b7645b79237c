"""Everything the publisher can refuse, and who acts on it.

PublisherError
├── CheckpointError        the files are no sound checkpoint       their writer: write them anew
│   ├── IndexMismatch      index.json and the shards disagree      the same
│   ├── UnsafeEntry        a link, device, socket or unsafe name   the same: copy the files
│   └── CheckpointChanged  a file changed while it was being read  the caller: publish again
├── StateBusy              another publisher uses the directory    the operator: one for each
├── StateUnsuitable        the directory holds something else      the operator: an empty one
├── BaselineUnavailable    the parent's bytes cannot be rebuilt    the operator: publish a full
├── PublishFailed          a step was not published, beside        the trainer: as its cause says;
│                          training that went on                   the next step holds it all
├── ResumeRefused          every version is of a later step        the operator: another run
├── BaseUnnamed            an adapter's version names no base      the publisher: publish it again
├── BaseDiffers            an adapter was trained on other weights  the operator: take its base
├── ShardMismatch          the ranks' parts do not make tensors    the trainer's programmer
├── RankFailed             one rank could not do its part          as its cause says, on that rank
├── PeerLost               a rank of the trainer is gone           the operator: restart the job
└── VerifyFailed           the patch does not give the weights     report it: nothing is published
"""

from __future__ import annotations


class PublisherError(Exception):
    """Base of every error raised by skerry.publisher."""


class CheckpointError(PublisherError):
    """The files given are not a sound checkpoint."""


class IndexMismatch(CheckpointError):
    """An index names shards or tensors that are not there, or leaves some out."""

    def __init__(
        self, *, index: str, rule: str, shard: str | None = None, tensor: str | None = None
    ) -> None:
        super().__init__(f"{index}: {rule}")
        self.index = index
        self.shard = shard
        self.tensor = tensor


class UnsafeEntry(CheckpointError):
    """A directory entry that is no plain file or directory, or has an unsafe name."""

    def __init__(self, *, name: str, rule: str) -> None:
        super().__init__(f"{name!r}: {rule}")
        self.name = name


class CheckpointChanged(CheckpointError):
    """A file is not what it was when the checkpoint was scanned."""

    def __init__(self, *, name: str, expected: str, found: str) -> None:
        super().__init__(f"{name}: changed while it was read: expected {expected}, found {found}")
        self.name = name


class StateBusy(PublisherError):
    """Another publisher has the state directory open."""


class StateUnsuitable(PublisherError):
    """The directory given for the publisher's state holds something else."""


class BaselineUnavailable(PublisherError):
    """The published bytes of a version could not be rebuilt, or are not what the log says."""

    def __init__(self, *, version: int, why: str) -> None:
        super().__init__(f"version {version} cannot serve as base: {why}")
        self.version = version


class PublishFailed(PublisherError):
    """A step that was accepted has not become a version; `__cause__` is what went wrong."""

    def __init__(self, *, step: int, why: str) -> None:
        super().__init__(f"step {step} was not published: {why}")
        self.step = step


class ResumeRefused(PublisherError):
    """No version that the trainer could go on from is as old as its checkpoint."""

    def __init__(self, *, step: int, newest: int) -> None:
        super().__init__(
            f"a trainer at step {step}: expected a version of that step or an earlier one, "
            f"found none up to step {newest}"
        )
        self.step = step


class BaseUnnamed(PublisherError):
    """A version's recipe does not say which base an adapter belongs to."""


class BaseDiffers(PublisherError):
    """The weights at hand are not those that an adapter was trained on."""

    def __init__(self, *, expected: str, found: str) -> None:
        super().__init__(f"the adapter's base: expected {expected}, found {found}")
        self.expected = expected
        self.found = found


class ShardMismatch(PublisherError):
    """What the ranks hold is no whole tensor, or not what they said they hold."""

    def __init__(self, tensor: str, rule: str) -> None:
        super().__init__(f"{tensor}: {rule}")
        self.tensor = tensor


class RankFailed(PublisherError):
    """A rank could not do its part of a version, so that no rank goes on with it."""

    def __init__(self, *, rank: int, why: str) -> None:
        super().__init__(f"rank {rank} failed: {why}")
        self.rank = rank


class PeerLost(PublisherError):
    """A rank is gone, or does not answer; the others cannot go on without it."""


class VerifyFailed(PublisherError):
    """The patch, decoded against its base, does not give the weights it was made from."""

    def __init__(self, *, expected: str, found: str) -> None:
        super().__init__(
            f"the patch does not decode to the new weights: expected {expected}, found {found}"
        )
        self.expected = expected
        self.found = found
