"""Which part of a version a host serves: patterns over tensor names, or its place in a layout.

A **selection** is said once and holds for every version; `resolve` turns it into a **part** of one
layout: for each tensor the leaves (16 MiB pieces) that are mirrored.  A part is made of whole
leaves because a leaf is the smallest thing that the log lets anybody check.

Patterns: `*` is any text, `?` any one character, and where a whole component of a name is `a-b`,
any number from a to b: `model.layers.0-31.*`.  `!` before a pattern excludes.  Without an including
pattern everything is included.  A pattern that fits no tensor is refused: it is a typing mistake.

`tp=4,rank=1` (or `tp_rank`), `pp=2,pp_rank=0`, `ep=8,ep_rank=3` keep what a rank of such a layout
needs **at least**; where names cannot tell, the whole tensor is kept:

* pp: of layers `…layers.N.…` a contiguous n-th; tensors of no layer are kept by every rank.
* ep: of experts `….experts.N.…` a contiguous n-th; all others are kept by every rank.
* tp: of tensors split by output rows (q, gate, up, embedding, head) the rank's rows, flat ranges
  widened to leaves.  Of one split by columns (o, down) a rank's part is no range, and keys and
  values may have fewer heads than ranks: kept whole, like fused tensors and whatever does not
  divide evenly.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from skerry.codec.digest import LEAF_BYTES, Digest, leaf_count
from skerry.codec.layout import Layout
from skerry.codec.pack import leaf_range
from skerry.codec.tensors import TensorSpec
from skerry.island_agent.errors import SelectionRefused

_MAX_PATTERNS = 1000
_MAX_RANKS = 1 << 16
_RANGE = re.compile(r"([0-9]+)-([0-9]+)")
_LAYER = re.compile(r"(?:^|\.)layers\.([0-9]+)\.")
_EXPERT = re.compile(r"(?:^|\.)experts\.([0-9]+)\.")
_BY_ROWS = re.compile(r"(?:^|\.)(?:q_proj|gate_proj|up_proj|embed_tokens|lm_head|w1|w3)\.weight$")
_VOCABULARY = re.compile(r"(?:^|\.)(?:embed_tokens|lm_head)\.weight$")
_VOCABULARY_UNIT = 64  # engines pad a rank's rows to this: a vocabulary that it divides is not


@dataclass(frozen=True, slots=True)
class Pattern:
    """One pattern as it was written."""

    text: str

    @property
    def excludes(self) -> bool:
        return self.text.startswith("!")

    def matcher(self) -> _Matcher:
        return _Matcher(self.text.removeprefix("!"))


class _Matcher:
    """Says which names fit a pattern; numbers are compared as numbers."""

    def __init__(self, text: str) -> None:
        pieces: list[str] = []
        self._ranges: list[tuple[int, int]] = []
        for component in text.split("."):
            found = _RANGE.fullmatch(component)
            if found is not None:
                first, last = int(found[1]), int(found[2])
                if first > last:
                    raise ValueError(f"tensors: {component} is an empty range")
                self._ranges.append((first, last))
                pieces.append("([0-9]+)")
            else:
                piece = re.escape(component)
                pieces.append(piece.replace(r"\*", ".*").replace(r"\?", "."))
        self._regex = re.compile(r"\.".join(pieces), re.DOTALL)

    def fits(self, name: str) -> bool:
        found = self._regex.fullmatch(name)
        return found is not None and all(
            first <= int(number) <= last
            for number, (first, last) in zip(found.groups(), self._ranges, strict=True)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Rank `rank` of `ranks` along one axis of a parallel layout."""

    axis: str
    ranks: int
    rank: int

    def of(self, count: int) -> range | None:
        """Return this rank's numbers of `count`; None where they do not divide evenly."""
        if count % self.ranks:
            return None
        each = count // self.ranks
        return range(self.rank * each, (self.rank + 1) * each)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What is mirrored of every version.  `str` is canonical: equal texts, equal parts."""

    patterns: tuple[Pattern, ...] = ()
    shares: tuple[Share, ...] = ()

    @classmethod
    def parse(cls, patterns: Sequence[str] = (), shard: str | None = None) -> Selection:
        """Raises ValueError, whose text begins with what is wrong: tensors or shard."""
        if len(patterns) > _MAX_PATTERNS:
            raise ValueError(f"tensors: at most {_MAX_PATTERNS} patterns, found {len(patterns)}")
        for text in patterns:
            if not text.removeprefix("!") or any(c in text for c in ",;\n\0"):
                raise ValueError(f"tensors: {text!r} is no pattern")
            Pattern(text).matcher()
        shares = () if shard is None else _shares(shard)
        if not patterns and not shares:
            raise ValueError("tensors: a selection selects something")
        return cls(patterns=tuple(Pattern(text) for text in patterns), shares=shares)

    @classmethod
    def from_text(cls, text: str) -> Selection:
        """Parse `str(selection)`.  Raises ValueError."""
        patterns, separator, shard = text.partition(";")
        if not separator:
            raise ValueError(f"tensors: {text!r:.80} is no selection")
        return cls.parse(tuple(p for p in patterns.split(",") if p), shard or None)

    def __str__(self) -> str:
        patterns = ",".join(pattern.text for pattern in self.patterns)
        shares = ",".join(f"{s.axis}={s.ranks},{s.axis}_rank={s.rank}" for s in self.shares)
        return f"{patterns};{shares}"

    def resolve(self, layout: Layout) -> Part:
        """Return what is mirrored of versions of this layout.  Raises SelectionRefused."""
        names = self._names(layout)
        shares = {share.axis: share for share in self.shares}
        keep = [names, _numbered(layout, _LAYER, shares.get("pp"))]
        keep.append(_numbered(layout, _EXPERT, shares.get("ep")))
        leaves = []
        for spec in layout.tensors:
            if not all(spec.name in kept for kept in keep):
                leaves.append(range(0))
            else:
                leaves.append(_rows(spec, shares.get("tp")))
        part = Part(selection=self, tensors=layout.tensors, leaves=tuple(leaves))
        if not part.nbytes:
            raise SelectionRefused(f"{self}: selects no byte of this layout")
        return part

    def _names(self, layout: Layout) -> set[str]:
        """Return the tensors that the patterns select."""
        every = {spec.name for spec in layout.tensors}
        chosen = set() if any(not p.excludes for p in self.patterns) else set(every)
        dropped: set[str] = set()
        for pattern in self.patterns:
            matcher = pattern.matcher()
            fitting = {name for name in every if matcher.fits(name)}
            if not fitting:
                raise SelectionRefused(f"no tensor of this layout fits {pattern.text!r}")
            if pattern.excludes:
                dropped |= fitting
            else:
                chosen |= fitting
        return chosen - dropped


@dataclass(frozen=True, kw_only=True)
class Part:
    """The leaves of one layout that are mirrored: `leaves[t]` of tensor t, consecutive numbers."""

    selection: Selection
    tensors: tuple[TensorSpec, ...]
    leaves: tuple[range, ...]
    _numbers: Mapping[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        numbers = {spec.name: number for number, spec in enumerate(self.tensors)}
        object.__setattr__(self, "_numbers", numbers)

    @cached_property
    def nbytes(self) -> int:
        """Bytes of weights in the part."""
        return sum(stop - start for _, start, stop in self.ranges())

    @property
    def weights_bytes(self) -> int:
        """Bytes of weights in the whole version."""
        return sum(spec.nbytes for spec in self.tensors)

    def holds(self, name: str, leaf: int) -> bool:
        return leaf in self.leaves[self._numbers[name]]

    def of(self, spec: TensorSpec) -> range:
        return self.leaves[self._numbers[spec.name]]

    def ranges(self) -> Iterator[tuple[TensorSpec, int, int]]:
        """Yield each tensor that is held, and its bytes [start, stop) that are."""
        for spec, leaves in zip(self.tensors, self.leaves, strict=True):
            if leaves:
                yield spec, leaf_range(spec, leaves[0])[0], leaf_range(spec, leaves[-1])[1]

    def covers(self, spec: TensorSpec, start: int, stop: int) -> bool:
        """Say whether bytes [start, stop) of a tensor are held."""
        if start >= stop:
            return True
        held = self.of(spec)
        return start // LEAF_BYTES in held and (stop - 1) // LEAF_BYTES in held

    def outside(self, leaves: Mapping[str, Mapping[int, Digest]]) -> dict[str, dict[int, Digest]]:
        """Return those of `leaves` that are not held."""
        kept = {
            name: {i: digest for i, digest in found.items() if not self.holds(name, i)}
            for name, found in leaves.items()
        }
        return {name: found for name, found in kept.items() if found}


def _shares(text: str) -> tuple[Share, ...]:
    values: dict[str, int] = {}
    for item in text.split(","):
        name, separator, number = item.partition("=")
        known = name in ("rank", "tp", "pp", "ep", "tp_rank", "pp_rank", "ep_rank")
        if not separator or not known or not re.fullmatch(r"[0-9]{1,5}", number) or name in values:
            raise ValueError(f"shard: expected tp=N,rank=R and the like, found {item!r:.40}")
        values[name] = int(number)
    axes = [axis for axis in ("tp", "pp", "ep") if axis in values]
    if "rank" in values:
        if len(axes) != 1 or f"{axes[0]}_rank" in values:
            raise ValueError("shard: `rank` goes with one of tp, pp, ep; else say tp_rank, …")
        values[f"{axes[0]}_rank"] = values.pop("rank")
    shares = []
    for axis in axes:
        ranks, rank = values.pop(axis), values.pop(f"{axis}_rank", None)
        if rank is None or not 1 <= ranks <= _MAX_RANKS or rank >= ranks:
            raise ValueError(f"shard: {axis}={ranks} needs a rank from 0 to {ranks - 1}")
        shares.append(Share(axis=axis, ranks=ranks, rank=rank))
    if values or not shares:
        raise ValueError(f"shard: expected tp=N,rank=R and the like, found {text!r:.40}")
    return tuple(shares)


def _numbered(layout: Layout, number: re.Pattern[str], share: Share | None) -> set[str]:
    """Return the tensors of this rank's numbers, and those without one.  Raises SelectionRefused.

    Layers and experts are counted, so a number that is left out would move all others.
    """
    found = {spec.name: number.search(spec.name) for spec in layout.tensors}
    numbers = {int(match[1]) for match in found.values() if match is not None}
    if share is None:
        return set(found)
    own = share.of(len(numbers))
    if own is None or not numbers or numbers != set(range(len(numbers))):
        raise SelectionRefused(
            f"{share.axis}={share.ranks} does not divide {len(numbers)} numbers evenly: "
            "name the tensors with --tensors"
        )
    return {name for name, match in found.items() if match is None or int(match[1]) in own}


def _rows(spec: TensorSpec, share: Share | None) -> range:
    """Return the leaves that hold this rank's rows of a tensor; all of them where in doubt."""
    leaves = range(leaf_count(spec.nbytes))
    if share is None or not spec.shape or _BY_ROWS.search(spec.name) is None or not leaves:
        return leaves
    unit = share.ranks * (_VOCABULARY_UNIT if _VOCABULARY.search(spec.name) else 1)
    rows = share.of(spec.shape[0])
    if rows is None or not rows or spec.shape[0] % unit:
        return leaves
    row_bytes = spec.nbytes // spec.shape[0]
    start, stop = rows[0] * row_bytes, (rows[-1] + 1) * row_bytes
    return range(start // LEAF_BYTES, (stop - 1) // LEAF_BYTES + 1)
