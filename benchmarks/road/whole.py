"""What most do instead: download the files of a full checkpoint, in parts side by side.

    python -m skerry.benchmarks.road.whole URL DIRECTORY KEY...

By boto3's transfer manager with the settings that the `aws` command has by default: parts of 8 MiB,
ten at a time.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.config import Config

from skerry.benchmarks.road.messages import say
from skerry.bulletin.stores.s3_address import S3Address

_TRANSFER = TransferConfig(
    multipart_threshold=8 << 20,
    multipart_chunksize=8 << 20,
    max_concurrency=10,
    preferred_transfer_client="classic",
)


def main() -> None:
    url, directory, *keys = sys.argv[1:]
    address = S3Address.parse(url)
    client = boto3.client(
        "s3",
        endpoint_url=address.endpoint_url,
        region_name="us-east-1",
        config=Config(s3={"addressing_style": "path"}, max_pool_connections=10),
    )
    began, nbytes = time.perf_counter(), 0
    for number, key in enumerate(keys):
        path = Path(directory) / str(number)
        name = f"{address.prefix}/{key}"
        client.download_file(address.bucket, name, str(path), Config=_TRANSFER)
        nbytes += path.stat().st_size
        path.unlink()
    say(seconds=time.perf_counter() - began, nbytes=nbytes)


if __name__ == "__main__":
    main()
