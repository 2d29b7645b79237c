"""One version of a run, rebuilt a few leaves at a time and never as a whole.

Nothing here is believed: whoever uses it hashes what comes out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

from skerry.bulletin.reader import BulletinReader
from skerry.bulletin.records import Full
from skerry.codec.digest import Bytes, Digest, leaf_count
from skerry.codec.dtypes import Words
from skerry.codec.errors import BaseMismatch, ResultMismatch
from skerry.codec.fold import apply_pack
from skerry.codec.layout import Layout
from skerry.codec.pack import Pack, PackedLeaf, leaf_range
from skerry.codec.tensors import TensorSpec
from skerry.codec.weights import WeightsDigest
from skerry.island_agent.errors import ChainRefused
from skerry.island_agent.install import mapped
from skerry.island_agent.ranges import read_file, read_object, sparse
from skerry.island_agent.roads import Road

Leaf = tuple[str, int]  # a number, of the tensor of that name
Buffers = Mapping[str, Bytes]  # by tensor; of each only the leaves of a block are filled
Fill = Callable[[str, int, Bytes], None]  # the bytes of a file from there on

_NO_LEAF = Digest("0" * 64)
_BLOCK_BYTES = 32 * 1024 * 1024
_NEAR_BYTES = 64 * 1024  # a gap that is cheaper to read than to ask around


@dataclass(frozen=True, eq=False)
class Rebuilt:
    """`fill` reads what its road starts from; None: that is another version's block."""

    version: int
    weights: Digest
    layout: Layout
    packs: tuple[Pack, ...]
    fill: Fill | None

    @classmethod
    def of(
        cls,
        reader: BulletinReader,
        road: Road,
        spool: Path,
        mirror: Path | None,
        on_read: Callable[[int], None],
    ) -> Rebuilt:
        """Put together what a road names; its packs lie in the spool, `mirror` holds files.

        `on_read` is told of bytes that the bulletin is asked for.  Raises BaseMismatch,
        ChainRefused, FormatError, or what the layout is refused for.
        """
        commit = reader.state.commits[road.version]
        layout = reader.layout(commit.layout)
        fill: Fill | None = None
        if road.full is not None:
            fill = _reading(reader, road.full, on_read)
        elif road.start == "mirror":
            assert mirror is not None
            fill = partial(_read_mirror, mirror)
        packs = []
        for step in road.patches:
            for ref in step.objects:
                pack = Pack.parse(mapped(spool / ref.digest), layout)
                if pack.base != step.base_result:
                    raise BaseMismatch(expected=pack.base, found=str(step.base_result))
                packs.append(pack)
        return cls(road.version, commit.result, layout, tuple(packs), fill)

    @cached_property
    def numbers(self) -> Mapping[str, int]:
        """Where in the layout's table each tensor is, by name."""
        return {spec.name: number for number, spec in enumerate(self.layout.tensors)}

    def spec(self, name: str) -> TensorSpec:
        return self.layout.tensors[self.numbers[name]]

    def place(self, leaf: Leaf) -> tuple[str, int, int]:
        """Return file, start and stop of a leaf's bytes there."""
        spec = self.spec(leaf[0])
        start, stop = leaf_range(spec, leaf[1])
        return spec.file, spec.offset + start, spec.offset + stop

    def nbytes(self, leaf: Leaf) -> int:
        _, start, stop = self.place(leaf)
        return stop - start

    def words(self, leaf: Leaf, buffers: Buffers) -> Words:
        """Return the words of a leaf of a block."""
        spec = self.spec(leaf[0])
        start, stop = leaf_range(spec, leaf[1])
        return spec.view(buffers[leaf[0]][start:stop])

    def block(self, wanted: Sequence[Leaf], base: Buffers | None, threads: int) -> Buffers:
        """Rebuild some leaves; `base` is the block of the version that this one starts from.

        Raises StoreError, OSError, MirrorDamaged or FormatError.
        """
        buffers = {name: sparse(self.spec(name).nbytes) for name, _ in wanted}
        if self.fill is None:
            assert base is not None
            for name, number in wanted:
                start, stop = leaf_range(self.spec(name), number)
                buffers[name][start:stop] = base[name][start:stop]
        else:
            for run in self._runs(wanted):
                self._read(run, self.fill, buffers)
        for pack in self.packs:
            apply_pack(
                self.layout, self._only(pack, wanted), lambda spec: buffers[spec.name],
                threads=threads,
            )  # fmt: skip
        return buffers

    def _runs(self, wanted: Sequence[Leaf]) -> Iterator[list[Leaf]]:
        """Group leaves that lie side by side in one file."""
        run: list[Leaf] = []
        for leaf in sorted(wanted, key=self.place):
            if run:
                file, _, end = self.place(run[-1])
                found, start, _ = self.place(leaf)
                if found != file or start - end > _NEAR_BYTES:
                    yield run
                    run = []
            run.append(leaf)
        if run:
            yield run

    def _read(self, run: Sequence[Leaf], fill: Fill, buffers: Buffers) -> None:
        file, begin, _ = self.place(run[0])
        data = sparse(self.place(run[-1])[2] - begin)
        fill(file, begin, data)
        for leaf in run:
            _, start, stop = self.place(leaf)
            part = self.words(leaf, buffers).view(data.dtype)
            part[:] = data[start - begin : stop - begin]

    def _only(self, pack: Pack, wanted: Sequence[Leaf]) -> Pack:
        leaves: dict[int, dict[int, PackedLeaf]] = {}
        for name, number in wanted:
            tensor = self.numbers[name]
            packed = pack.leaves.get(tensor, {}).get(number)
            if packed is not None:
                leaves.setdefault(tensor, {})[number] = packed
        return replace(pack, leaves=leaves)


def blocks(rebuilt: Rebuilt, wanted: Sequence[Leaf]) -> Iterator[list[Leaf]]:
    """Cut leaves, in the order of the files, into what is rebuilt at once."""
    block: list[Leaf] = []
    held = 0
    for leaf in sorted(wanted, key=rebuilt.place):
        if block and held + rebuilt.nbytes(leaf) > _BLOCK_BYTES:
            yield block
            block, held = [], 0
        block.append(leaf)
        held += rebuilt.nbytes(leaf)
    if block:
        yield block


def _reading(reader: BulletinReader, full: Full, on_read: Callable[[int], None]) -> Fill:
    refs = {file.name: full.ref(file) for file in full.files}

    def fill(file: str, start: int, into: Bytes) -> None:
        ref = refs.get(file)
        if ref is None or start + into.size > ref.size:
            raise ChainRefused(f"{full.prefix}: {file} has no {into.size} bytes at {start}")
        on_read(into.size)
        read_object(reader.store, ref.key, start, into)

    return fill


def _read_mirror(directory: Path, file: str, start: int, into: Bytes) -> None:
    read_file(directory / file, start, into)


def shape_of(spec: TensorSpec | None) -> tuple[str, tuple[int, ...]] | None:
    return None if spec is None else (spec.dtype, spec.shape)


def common_tensors(first: Rebuilt, second: Rebuilt) -> list[str]:
    """Return the names of tensors that both have, of the same type and shape."""
    return [
        name
        for name in first.numbers
        if name in second.numbers and shape_of(first.spec(name)) == shape_of(second.spec(name))
    ]


def unlike_leaves(
    name: str, both: Sequence[Rebuilt], stated: Sequence[WeightsDigest | None]
) -> Iterator[Leaf]:
    """Yield the leaves of a tensor, without those that are stated to be the same in both."""
    for number in range(leaf_count(both[0].spec(name).nbytes)):
        digests = [
            None if known is None else known.leaf(rebuilt.numbers[name], number)
            for rebuilt, known in zip(both, stated, strict=True)
        ]
        if None in digests or digests[0] != digests[1]:
            yield name, number


def prove(
    rebuilt: Rebuilt, stated: WeightsDigest | None, found: Mapping[str, Mapping[int, Digest]]
) -> None:
    """Raises ResultMismatch unless what was rebuilt is the version that the log has."""
    if stated is None:
        tensors = rebuilt.layout.tensors
        none = tuple((_NO_LEAF,) * leaf_count(spec.nbytes) for spec in tensors)
        stated = WeightsDigest(tensors=tensors, leaves=none)
    digest = stated.replace(found).version()
    if digest != rebuilt.weights:
        what = f"version {rebuilt.version}, rebuilt,"
        raise ResultMismatch(what=what, expected=rebuilt.weights, found=digest)
