"""A checkpoint: safetensors shards and side files, read one tensor at a time.

`layout` says everything but the weights; `read` gives those.  A directory and arrays in memory look
the same from here on.  Bytes are carried as they are: headers, padding, index and all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from skerry.codec.digest import Bytes, digest_bytes
from skerry.codec.dtypes import DTYPES
from skerry.codec.errors import FormatError
from skerry.codec.header import ShardHeader, build_header, header_size, parse_header, tensor_bytes
from skerry.codec.layout import Layout, Shard, SideFile
from skerry.codec.tensors import TensorSpec
from skerry.publisher.arrays import Served, as_served
from skerry.publisher.directory import ScanLimits, list_files
from skerry.publisher.errors import CheckpointChanged, CheckpointError
from skerry.publisher.index import INDEX_SUFFIX, SHARD_SUFFIX, build_index, check_indexes
from skerry.publisher.sources import ArraySource, FileSource, Source

_METADATA = {"format": "pt"}  # the Hugging Face loaders refuse a shard without it


class Checkpoint:
    """One state of a model's files.  Raises CheckpointError when they are not sound."""

    def __init__(
        self,
        layout: Layout,
        sources: Mapping[str, Source],
        *,
        directory: Path | None = None,
        limits: ScanLimits | None = None,
    ) -> None:
        self.layout = layout
        self._sources = sources
        self._directory = directory
        self._limits = limits or ScanLimits()

    @classmethod
    def scan(
        cls,
        directory: Path | str,
        *,
        recipe: Mapping[str, object] | None = None,
        limits: ScanLimits | None = None,
    ) -> Checkpoint:
        """Read a checkpoint directory's structure: headers and side files, no weights.

        Raises CheckpointError: no shard, an unsound one, an index that does not fit, links.
        """
        root, limits = Path(directory), limits or ScanLimits()
        files = list_files(root, limits)
        shards = {name: file for name, file in files.items() if name.endswith(SHARD_SUFFIX)}
        sides = {name: file for name, file in files.items() if name not in shards}
        if not shards:
            raise CheckpointError(f"{root}: expected *{SHARD_SUFFIX} files, found none")
        contents = {name: file.whole() for name, file in sides.items()}
        layout = _layout(
            {name: _file_header(name, file) for name, file in shards.items()},
            {name: file.size for name, file in shards.items()},
            contents,
            recipe or {},
        )
        return cls(layout, files, directory=root, limits=limits)

    @classmethod
    def from_arrays(
        cls,
        arrays: Mapping[str, Served],
        *,
        side_files: Mapping[str, bytes] | None = None,
        recipe: Mapping[str, object] | None = None,
        metadata: Mapping[str, str] | None = None,
        max_shard_bytes: int = 5_000_000_000,
        stem: str = "model",
    ) -> Checkpoint:
        """Lay arrays out as a Hugging Face checkpoint.

        `stem` is how shards are called: `model`, or `adapter_model` for an adapter.

        Deterministic: the same names, dtypes and shapes give the same headers, whatever the
        order of the mapping.  The arrays are not copied; they must stay as they are until
        publishing has returned.
        """
        served = {name: as_served(name, arrays[name]) for name in sorted(arrays, key=str.encode)}
        arranged = arrange(
            {name: (tensor.dtype, tensor.shape) for name, tensor in served.items()},
            side_files=side_files,
            recipe=recipe,
            metadata=metadata,
            max_shard_bytes=max_shard_bytes,
            stem=stem,
        )
        sources: dict[str, Source] = {}
        for shard in arranged.layout.shards:
            raw = np.frombuffer(shard.header, np.uint8)
            names = arranged.order[shard.name]
            sources[shard.name] = ArraySource(parts=[raw, *(served[name].raw for name in names)])
        for name, data in arranged.contents.items():
            sources[name] = ArraySource(parts=[np.frombuffer(data, np.uint8)])
        return cls(arranged.layout, sources)

    def read(self, spec: TensorSpec) -> Bytes:
        """Return a tensor's bytes, shape [nbytes], without a copy.  Raises CheckpointChanged."""
        return self._sources[spec.file].read(spec.offset, spec.offset + spec.nbytes)

    def side_file(self, name: str) -> bytes:
        """Return a side file's bytes, those that the layout has the digest of."""
        expected = next(side.digest for side in self.layout.side_files if side.name == name)
        data = b"".join(self._sources[name].chunks())
        found = digest_bytes(data)
        if found != expected:
            raise CheckpointChanged(name=name, expected=expected, found=found)
        return data

    def file_chunks(self, name: str) -> Iterator[bytes]:
        """Yield a file's bytes in order, a bounded piece at a time."""
        return self._sources[name].chunks()

    def write_to(self, directory: Path) -> None:
        """Write all files below `directory`; one that is there already is refused."""
        for name, _ in self.layout.files():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:
                file.writelines(self.file_chunks(name))

    def check_unchanged(self) -> None:
        """Raise CheckpointChanged unless the files are still those that were scanned."""
        for source in self._sources.values():
            source.check()
        if self._directory is not None:
            now = list_files(self._directory, self._limits)
            for name in sorted(now.keys() ^ self._sources.keys()):
                found = "a new file" if name in now else "no file"
                expected = "no file" if name in now else "the file"
                raise CheckpointChanged(name=name, expected=expected, found=found)


def _file_header(name: str, file: FileSource) -> ShardHeader:
    try:
        prefix = file.read(0, min(8, file.size)).tobytes()
        size = header_size(prefix, file.size)
        return parse_header(name, file.read(0, size).tobytes(), file.size)
    except FormatError as error:
        rule = str(error).removeprefix(f"{name}: ")
        raise CheckpointError(f"{name}: not a sound safetensors file: {rule}") from error


def _layout(
    headers: Mapping[str, ShardHeader],
    sizes: Mapping[str, int],
    contents: Mapping[str, bytes],
    recipe: Mapping[str, object],
) -> Layout:
    try:
        layout = Layout(
            shards=tuple(
                Shard(name=name, size=sizes[name], header=headers[name].raw)
                for name in sorted(headers)
            ),
            side_files=tuple(
                SideFile(name=name, size=len(contents[name]), digest=digest_bytes(contents[name]))
                for name in sorted(contents)
            ),
            recipe=recipe,
        )
    except FormatError as error:
        raise CheckpointError(str(error)) from error
    indexes = {name: data for name, data in contents.items() if name.endswith(INDEX_SUFFIX)}
    check_indexes(indexes, tuple(headers), layout.tensors)
    return layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Arranged:
    """A checkpoint without its weights: each shard's tensors in file order, side files' bytes."""

    layout: Layout
    order: Mapping[str, Sequence[str]]
    contents: Mapping[str, bytes]


def arrange(
    tensors: Mapping[str, tuple[str, tuple[int, ...]]],
    *,
    side_files: Mapping[str, bytes] | None = None,
    recipe: Mapping[str, object] | None = None,
    metadata: Mapping[str, str] | None = None,
    max_shard_bytes: int = 5_000_000_000,
    stem: str = "model",
) -> Arranged:
    """Lay tensors, by name with dtype and shape, out as a Hugging Face checkpoint.

    The result depends on what is given alone, not on the order of the mapping.
    """
    sizes = {name: tensor_bytes(name, *tensors[name]) for name in sorted(tensors, key=str.encode)}
    words = {name: DTYPES[tensors[name][0]].word for name in tensors}
    groups = _group(sizes, words, max_shard_bytes)
    headers: dict[str, ShardHeader] = {}
    order: dict[str, Sequence[str]] = {}
    for number, names in enumerate(groups, start=1):
        file = (
            f"{stem}{SHARD_SUFFIX}"
            if len(groups) == 1
            else f"{stem}-{number:05}-of-{len(groups):05}{SHARD_SUFFIX}"
        )
        headers[file] = build_header(
            file,
            [(name, *tensors[name]) for name in names],
            _METADATA if metadata is None else metadata,
        )
        order[file] = names
    contents = dict(side_files or {})
    if len(groups) > 1:
        weight_map = {t.name: file for file, header in headers.items() for t in header.tensors}
        contents.setdefault(f"{stem}{INDEX_SUFFIX}", build_index(weight_map, sum(sizes.values())))
    files = {
        file: len(header.raw) + sum(sizes[name] for name in order[file])
        for file, header in headers.items()
    }
    layout = _layout(headers, files, contents, recipe or {})
    return Arranged(layout=layout, order=order, contents=contents)


def _group(sizes: Mapping[str, int], words: Mapping[str, int], limit_bytes: int) -> list[list[str]]:
    """Fill shards in name order; within one, wide words first, so that all are aligned."""
    groups: list[list[str]] = [[]]
    filled = 0
    for name, nbytes in sizes.items():
        if groups[-1] and filled + nbytes > limit_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(name)
        filled += nbytes
    return [sorted(group, key=lambda name: -words[name]) for group in groups]
