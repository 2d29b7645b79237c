"""A large object into a bucket, in parts: whole or not at all, in bounded memory.

For names that only one content can have.  A part that got no answer is sent again; any error ends
with the upload aborted, and nothing is visible before it is complete.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from botocore.exceptions import ClientError

from skerry.bulletin.errors import NotFound, StoreDenied, StoreError
from skerry.bulletin.stores.retries import Retries
from skerry.bulletin.stores.s3_errors import RAISED, code_of, translate, translated

logger = logging.getLogger(__name__)

PART_BYTES = 16 * 1024 * 1024  # all parts but the last: some stores insist that they are equal
_MOST_PARTS = 10_000  # of S3, so that an object has at most 156 GiB
_THREADS = 4  # and as many parts in memory, beside the one that is being filled


def in_parts(pieces: Iterable[bytes], part_bytes: int = PART_BYTES) -> Iterator[bytes]:
    """Yield the same bytes in parts of equal size, the last one shorter."""
    held: list[bytes | memoryview] = []
    size = 0
    for piece in pieces:
        view = memoryview(piece).cast("B")
        while size + len(view) >= part_bytes:
            taken = part_bytes - size
            yield b"".join([*held, view[:taken]])
            held, size, view = [], 0, view[taken:]
        if view:
            held.append(bytes(view))  # the source may use its buffer again
            size += len(view)
    if size:
        yield b"".join(held)


class Upload:
    """One multipart upload."""

    def __init__(self, s3: Any, retries: Retries, key: str, at: dict[str, str], cache: str) -> None:
        self._s3 = s3
        self._retries = retries
        self._key = key
        self._at = at
        self._cache = cache
        self._id = ""

    def run(self, first: bytes, rest: Iterator[bytes]) -> int:
        """Store the object; return its size.  What `rest` raises passes through."""
        self._id = self._retries.writing().run(self._begin)
        try:
            tags, size = self._send(first, rest)
            self._retries.writing().run(lambda: self._complete(tags, size))
        except BaseException:
            self._abort()
            raise
        return size

    def _begin(self) -> str:
        with translated(self._key, write=True):
            answer = self._s3.create_multipart_upload(**self._at, CacheControl=self._cache)
        return str(answer["UploadId"])

    def _send(self, first: bytes, rest: Iterator[bytes]) -> tuple[list[str], int]:
        """Return the parts' tags and the size of all; no part is under way any more."""
        tags: list[str] = []
        size = 0
        waiting: deque[Future[str]] = deque()
        pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="skerry-upload")
        try:
            part: bytes | None = first
            number = 0
            while part is not None:
                number += 1
                if number > _MOST_PARTS:
                    rule = f"expected at most {_MOST_PARTS} parts of {PART_BYTES} bytes"
                    raise StoreDenied(self._key, rule)
                if len(waiting) == _THREADS:
                    tags.append(waiting.popleft().result())
                waiting.append(pool.submit(self._part, number, part))
                size += len(part)
                part = next(rest, None)
            while waiting:
                tags.append(waiting.popleft().result())
        finally:
            # A part that lands after the abort would be kept, and paid for, for ever.
            pool.shutdown(wait=True, cancel_futures=True)
        return tags, size

    def _part(self, number: int, data: bytes) -> str:
        def attempt() -> str:
            with translated(self._key, write=True):
                answer = self._s3.upload_part(
                    **self._at, UploadId=self._id, PartNumber=number, Body=data
                )
            return str(answer["ETag"])

        return self._retries.writing().run(attempt)

    def _complete(self, tags: list[str], size: int) -> None:
        parts = [{"PartNumber": n, "ETag": tag} for n, tag in enumerate(tags, start=1)]
        try:
            self._s3.complete_multipart_upload(
                **self._at, UploadId=self._id, MultipartUpload={"Parts": parts}
            )
        except ClientError as error:
            # After a lost reply the upload is gone because it is complete.
            if code_of(error) == "NoSuchUpload" and self._there(size):
                return
            raise translate(self._key, error, write=True) from None
        except RAISED as error:
            raise translate(self._key, error, write=True) from None

    def _there(self, size: int) -> bool:
        try:
            with translated(self._key, write=True):
                return bool(self._s3.head_object(**self._at)["ContentLength"] == size)
        except NotFound:
            return False

    def _abort(self) -> None:
        try:
            with translated(self._key, write=True):
                self._s3.abort_multipart_upload(**self._at, UploadId=self._id)
        except NotFound:
            return
        except StoreError as error:
            logger.warning("parts of an upload stay, let the bucket expire them: %s", error)
