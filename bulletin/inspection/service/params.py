"""What a request may say, with the limit of each parameter.  Anything else in it is refused."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Path
from pydantic import BaseModel, ConfigDict, Field

MOST = 2**63 - 1
PAGE = 1000
STRETCH = 10_000  # versions in one chart
RELATIVES = 2_000
COLUMNS = 128  # each of them may be a manifest to read
NAME = 1024  # characters: no tensor's name is longer

Number = Annotated[int, Field(ge=0, le=MOST)]
VersionPath = Annotated[int, Path(ge=0, le=MOST, description="A version's number.", examples=[0])]
DigestPath = Annotated[
    str, Path(pattern="^[0-9a-f]{64}$", description="BLAKE3-256 in lower-case hex digits.")
]
IslandPath = Annotated[
    str, Path(pattern="^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", description="An island's id.")
]


class Params(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class VersionsQuery(Params):
    """One page of versions, newest first."""

    limit: int = Field(100, ge=1, le=PAGE, description="Versions in the answer, at most.")
    before: Number | None = Field(None, description="Only older versions than this.")
    after: Number | None = Field(None, description="Only newer versions than this.")
    order: Literal["newest", "oldest"] = Field("newest", description="Which ones come first.")
    state: Literal["live", "abandoned", "retired"] | None = Field(
        None, description="Only versions of this state."
    )


class RecordsQuery(Params):
    """One page of the log, oldest first."""

    limit: int = Field(100, ge=1, le=PAGE, description="Records in the answer, at most.")
    after: Number | None = Field(None, description="Only records behind this slot.")


class StretchQuery(Params):
    """A stretch of versions; of more than `limit` the newest."""

    first: Number | None = Field(None, description="The oldest version.")
    last: Number | None = Field(None, description="The newest version.")
    limit: int = Field(5000, ge=1, le=STRETCH, description="Versions in the answer, at most.")


class LineageQuery(Params):
    """A stretch of versions, and the skips that begin or end there."""

    first: Number | None = Field(None, description="The oldest version.")
    last: Number | None = Field(None, description="The newest version.")
    limit: int = Field(500, ge=1, le=RELATIVES, description="Versions in the answer, at most.")


class TensorsQuery(Params):
    """Tensors of one version."""

    limit: int = Field(100, ge=1, le=PAGE, description="Tensors in the answer, at most.")
    offset: int = Field(0, ge=0, le=10_000_000, description="How many to leave out.")
    order: Literal["name", "share", "changed", "bytes"] = Field("name", description="By what.")
    prefix: str = Field("", max_length=NAME, description="What their names start with.")
    layer: int | None = Field(None, ge=-1, le=10**9, description="Of this layer; -1: of none.")
    projection: str | None = Field(None, max_length=NAME, description="Of this projection.")


class HeatQuery(Params):
    """Versions between `first` and `last`, evenly chosen."""

    first: Number | None = Field(None, description="The oldest version; 0 without it.")
    last: Number | None = Field(None, description="The newest version.")
    columns: int = Field(48, ge=1, le=COLUMNS, description="Versions in the answer, at most.")


class TensorQuery(HeatQuery):
    """One tensor over versions."""

    name: str = Field(
        min_length=1, max_length=NAME, description="Its name.", examples=["model.norm.weight"]
    )


class DifferenceQuery(Params):
    """Two versions of the run, in any order."""

    old: Number = Field(description="The version to start from.", examples=[0])
    new: Number = Field(description="The version to end at.", examples=[1])
    limit: int = Field(100, ge=1, le=PAGE, description="Tensors in the answer, at most.")


class CatchUpQuery(Params):
    """From what an island has to what it wants."""

    have: Number | None = Field(None, description="The version it has; without it, none.")
    want: Number | None = Field(None, description="The version it wants; without it, the newest.")


class IslandsQuery(Params):
    """One page of islands, those first that need somebody."""

    limit: int = Field(200, ge=1, le=PAGE, description="Islands in the answer, at most.")
    offset: int = Field(0, ge=0, le=100_000, description="How many to leave out.")
    state: Literal["current", "behind", "failing", "silent", "stopped", "stray"] | None = Field(
        None, description="Only islands of this state."
    )


class StorageQuery(Params):
    """How long an island's lease may hold what is retired, for the reckoning of what is due."""

    lease_limit_s: int = Field(21_600, ge=0, le=10**7, description="Seconds beyond the grace.")


class ForecastQuery(Params):
    """The rules of a collection, as `skerry gc` takes them."""

    keep_last: int = Field(32, ge=1, le=256, description="Keep the newest so many.")
    keep_every: int | None = Field(None, ge=1, le=MOST, description="Keep what this divides.")


class VerificationQuery(Params):
    """How much to ask the store for."""

    deep: bool = Field(False, description="Read and hash every object, not only its size.")


class EventsQuery(Params):
    """How long to listen."""

    seconds: int = Field(3600, ge=1, le=3600, description="The stream ends after so long.")
