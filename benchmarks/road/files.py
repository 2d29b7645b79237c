"""What most do instead: a file for each version, downloaded whole and copied into the engine.

    python -m skerry.benchmarks.road.files full URL DIRECTORY KEY...
    python -m skerry.benchmarks.road.files xor URL DIRECTORY FIRST VERSIONS

`full` downloads the files of a checkpoint, again for each order.  `xor` reads the checkpoint that
`full` left in DIRECTORY, and waits for `xor/FIRST` and those after it: the XOR of every tensor with
the version before, by zstd-1.  Downloads are those of boto3's transfer manager with the settings
that the `aws` command has by default: parts of 8 MiB, ten at a time.  The engine is a second copy
of the weights; copying into it is the pause.  `digest` is that of the weights, taken afterwards.
"""

from __future__ import annotations

import io
import json
import struct
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import boto3
import numpy as np
import zstandard
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import ClientError

from skerry.benchmarks.dense import xor
from skerry.benchmarks.road.messages import orders, say
from skerry.benchmarks.road.spent import Spent
from skerry.benchmarks.weights import Pair
from skerry.bulletin.stores.s3_address import S3Address
from skerry.codec.digest import Bytes
from skerry.codec.weights import digest_weights
from skerry.publisher import Checkpoint

_TRANSFER = TransferConfig(
    multipart_threshold=8 << 20,
    multipart_chunksize=8 << 20,
    max_concurrency=10,
    preferred_transfer_client="classic",
)
_POLL_S = 0.1
_RIVAL = xor(1, used_by="")
_HEAD = struct.Struct("<I")


def xor_file(pair: Pair) -> bytes:
    """Return a version's file: a header with the lengths, then a frame for each tensor."""
    frames = {spec.name: _RIVAL.encode(old, new)[0] for spec, old, new in pair.words()}
    header = json.dumps({name: len(frame) for name, frame in frames.items()}).encode()
    return b"".join([_HEAD.pack(len(header)), header, *frames.values()])


def apply_xor_file(data: bytes, weights: Mapping[str, Bytes]) -> None:
    """Turn the weights of the version before into those of a file, in place."""
    (size,) = _HEAD.unpack_from(data)
    at = _HEAD.size + size
    for name, length in json.loads(data[_HEAD.size : at]).items():
        frame = zstandard.ZstdDecompressor().decompress(data[at : at + length])
        weights[name][:] ^= np.frombuffer(frame, np.uint8)
        at += length


class _Store:
    """The bucket, by boto3."""

    def __init__(self, url: str) -> None:
        self._address = S3Address.parse(url)
        self._client = boto3.client(
            "s3",
            endpoint_url=self._address.endpoint_url,
            region_name="us-east-1",
            config=Config(s3={"addressing_style": "path"}, max_pool_connections=10),
        )

    def fetch(self, key: str, path: Path) -> None:
        name = f"{self._address.prefix}/{key}"
        path.parent.mkdir(parents=True, exist_ok=True)
        self._client.download_file(self._address.bucket, name, str(path), Config=_TRANSFER)

    def wait(self, key: str) -> bytes:
        """Download an object into memory once it is there."""
        name = f"{self._address.prefix}/{key}"
        while True:
            out = io.BytesIO()
            try:
                self._client.download_fileobj(self._address.bucket, name, out, Config=_TRANSFER)
            except ClientError as error:
                if error.response["Error"]["Code"] != "404":
                    raise
                time.sleep(_POLL_S)
            else:
                return out.getvalue()


def _weights(checkpoint: Checkpoint) -> dict[str, Bytes]:
    return {spec.name: checkpoint.read(spec).copy() for spec in checkpoint.layout.tensors}


def _digest(checkpoint: Checkpoint, weights: Mapping[str, Bytes]) -> str:
    return digest_weights(checkpoint.layout, lambda spec: weights[spec.name]).version()


def _install(weights: Mapping[str, Bytes], engine: Mapping[str, Bytes]) -> float:
    """Copy all weights into the engine; return the seconds that it would have stood still."""
    began = time.perf_counter()
    for name, data in weights.items():
        np.copyto(engine[name], data)
    return time.perf_counter() - began


def full(url: str, directory: Path, keys: list[str]) -> Iterator[dict[str, Any]]:
    """Yield what each download of the checkpoint took."""
    store = _Store(url)
    engine: dict[str, Bytes] = {}
    for _ in orders():
        spent, began = Spent(), time.time()
        for key in keys:
            store.fetch(key, directory / Path(key).name)
        arrived = time.time()
        checkpoint = Checkpoint.scan(directory)
        weights = _weights(checkpoint)
        engine = engine or {name: data.copy() for name, data in weights.items()}
        pause_s = _install(weights, engine)
        served = time.time()
        found = {"began": began, "arrived": arrived, "served": served, "pause_s": pause_s}
        yield {**found, **spent.told(), "digest": _digest(checkpoint, weights)}


def followed(url: str, directory: Path, first: int, count: int) -> Iterator[dict[str, Any]]:
    """Yield what each XOR file took, before them once that it is ready."""
    store = _Store(url)
    checkpoint = Checkpoint.scan(directory)
    weights = _weights(checkpoint)
    engine = {name: data.copy() for name, data in weights.items()}
    yield {}
    for version in range(first, first + count):
        spent = Spent()
        data = store.wait(f"xor/{version}")
        arrived = time.time()
        apply_xor_file(data, weights)
        decoded = time.time()
        pause_s = _install(weights, engine)
        phases = {"decode": decoded - arrived, "install": pause_s}
        found = {"arrived": arrived, "served": time.time(), "pause_s": pause_s, "phases": phases}
        yield {**found, **spent.told(), "digest": _digest(checkpoint, weights)}


def main() -> None:
    what, url, directory, *rest = sys.argv[1:]
    path = Path(directory)
    told = full(url, path, rest) if what == "full" else followed(url, path, *map(int, rest))
    for one in told:
        say(**one)


if __name__ == "__main__":
    main()
