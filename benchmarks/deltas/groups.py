"""What the tensors of one kind, and those of one layer, cost by every codec.

Codecs that take one tensor after the other are asked once a tensor, and groups are sums; those that
take a file, or are slow, get a slice of the group.  A patch's index and leaf checks belong to no
tensor and are left out here, as are all rivals' metadata.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from skerry.benchmarks.bounds import bounds, count_changed
from skerry.benchmarks.deltas.results import Group
from skerry.benchmarks.rival import Rival
from skerry.benchmarks.weights import Pair, as_file, layout_of, slice_of
from skerry.bulletin.inspection.names import place
from skerry.codec.digest import Digest
from skerry.codec.encode import encode_pack
from skerry.codec.level import Level
from skerry.codec.parallel import ordered

_BASE = Digest("0" * 64)  # nobody looks it up here
_NO_LAYER = "none"

Sizes = Mapping[str, Mapping[str, int]]  # by codec, by tensor: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """How groups are measured."""

    rivals: Sequence[Rival]
    slice_bytes: int  # that slow rivals get of each group
    threads: int

    @property
    def codecs(self) -> list[str]:
        """The names of all codecs, in the order of `Group.sizes`."""
        return [*(f"Skerry, {level}" for level in Level), *(rival.name for rival in self.rivals)]

    def groups(self, pair: Pair) -> Iterator[Group]:
        """Yield every kind of tensor, then every layer."""
        sizes = self._by_tensor(pair)
        for by, names in (("projection", _kinds(pair)), ("layer", _layers(pair))):
            for name, tensors in names.items():
                yield self._group(by, name, _part(pair, tensors), sizes)

    def _by_tensor(self, pair: Pair) -> Sizes:
        sizes: dict[str, Mapping[str, int]] = {}
        for level in Level:
            pack = encode_pack(
                pair.layout, pair.read_old, pair.read_new, base=_BASE, level=level,
                threads=self.threads,
            )  # fmt: skip
            sizes[f"Skerry, {level}"] = {stat.name: stat.nbytes for stat in pack.stats}
        names = [spec.name for spec in pair.layout.tensors]
        for rival in self.rivals:
            if rival.slow or rival.missing():
                continue
            parts = ordered(lambda it: rival.encode(it[1], it[2]), pair.words(), self.threads)  # noqa: B023
            nbytes = (sum(map(len, part)) for part in parts)
            sizes[rival.name] = dict(zip(names, nbytes, strict=True))
        return sizes

    def _group(self, by: str, name: str, part: Pair, sizes: Sizes) -> Group:
        changed = count_changed(part)
        given, free = bounds(part)
        slow = {} if not changed else self._slow(part)
        found: list[float | None] = []
        for codec in self.codecs:
            if not changed:
                found.append(None)
            elif codec in sizes:
                nbytes = sum(sizes[codec].get(spec.name, 0) for spec in part.layout.tensors)
                found.append(_rounded(nbytes / changed))
            else:
                found.append(slow.get(codec))
        return Group(
            by=by,
            name=name,
            words=sum(spec.words for spec in part.layout.tensors),
            changed=changed,
            bound=_rounded(given.bytes_per_changed),
            free_bound=_rounded(free.bytes_per_changed),
            sizes=found,
        )

    def _slow(self, part: Pair) -> dict[str, float]:
        found = {}
        for rival in self.rivals:
            if not rival.slow or rival.missing():
                continue
            some = slice_of(part, int(self.slice_bytes * rival.slice_share))
            changed = count_changed(some)
            if not changed:
                continue  # too little of it to say anything
            sent = as_file(some, _one_dtype(some)) if rival.scope == "file" else some
            nbytes = sum(len(b) for _, old, new in sent.words() for b in rival.encode(old, new))
            found[rival.name] = _rounded(nbytes / changed)
        return found


def _kinds(pair: Pair) -> dict[str, list[str]]:
    kinds: defaultdict[str, list[str]] = defaultdict(list)
    for spec in pair.layout.tensors:
        kinds[place(spec.name).projection].append(spec.name)
    return dict(sorted(kinds.items()))


def _layers(pair: Pair) -> dict[str, list[str]]:
    layers: defaultdict[int, list[str]] = defaultdict(list)
    for spec in pair.layout.tensors:
        layer = place(spec.name).layer
        layers[-1 if layer is None else layer].append(spec.name)
    return {_NO_LAYER if n < 0 else str(n): names for n, names in sorted(layers.items())}


def _part(pair: Pair, names: Sequence[str]) -> Pair:
    shapes = {spec.name: (spec.dtype, spec.shape) for spec in pair.layout.tensors}
    return Pair(
        layout=layout_of([(name, *shapes[name]) for name in names]),
        old={name: pair.old[name] for name in names},
        new={name: pair.new[name] for name in names},
    )


def _one_dtype(pair: Pair) -> str:
    """Return the dtype that a file of these tensors is taken for: that of the narrowest words."""
    return min((spec.type for spec in pair.layout.tensors), key=lambda dtype: dtype.word).name


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")
