"""A bulletin in a bucket of S3, or of a store that speaks its language and keeps its conditions.

A record is one PutObject with `If-None-Match: *`, never a multipart upload: completing one is not
atomic everywhere.  boto3 does what is small or written, with its own retries off; what is large is
read by ranges over a presigned address.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Any

import boto3
import botocore.config
from botocore.exceptions import ClientError

from skerry.bulletin.errors import (
    AlreadyExists,
    InvalidKey,
    ObjectTooLarge,
    ShortObject,
    StoreDenied,
    StoreUnavailable,
)
from skerry.bulletin.keys import check_key, is_key
from skerry.bulletin.store import check_range
from skerry.bulletin.stores.adaptive import AdaptiveLimit, Slots
from skerry.bulletin.stores.ranges import ContentRange, RangeConfig, RangeReader
from skerry.bulletin.stores.retries import Retries
from skerry.bulletin.stores.s3_address import S3Address, web_address
from skerry.bulletin.stores.s3_errors import RAISED, status_of, translate, translated
from skerry.bulletin.stores.s3_upload import PART_BYTES, Upload, in_parts
from skerry.bulletin.stores.web import WebClient

_KEY_BYTES = 1024  # of S3, the prefix included
_SIGNED_S = 3600  # how long a presigned address is good for
_RENEWED_S = 1200  # and how long it is used
_SIGNED_KEPT = 256
_MUTABLE = ("hint/", "islands/")
_IMMUTABLE_CACHE = "public, max-age=31536000, immutable"
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


class S3Store:
    """See ObjectStore.  Credentials come from the usual AWS chain."""

    def __init__(
        self,
        address: S3Address,
        *,
        retries: Retries | None = None,
        config: RangeConfig | None = None,
    ) -> None:
        self._address = address
        self._retries = retries or Retries()
        self._s3 = _client(address)
        slots = Slots(AdaptiveLimit())
        self._ranges = RangeReader(WebClient(redirects=False), slots, self._retries, config)
        self._signed: dict[str, tuple[str, float]] = {}  # the last made last
        self._signing = threading.Lock()

    def __repr__(self) -> str:
        return f"S3Store({self._address})"

    def get(self, key: str, *, limit_bytes: int) -> bytes:
        # As a range, so that no more than the limit is ever sent and the answer states the size.
        data, total = self._range(key, 0, limit_bytes + 1)
        if total > limit_bytes:
            raise ObjectTooLarge(key, limit_bytes=limit_bytes, found=total)
        return data

    def get_range(self, key: str, start: int, stop: int) -> bytes:
        check_range(start, stop)
        if start == stop:
            self.size(key)
            return b""
        data, total = self._range(key, start, stop)
        if total < stop:
            raise ShortObject(key, expected=stop - start, found=max(total - start, 0))
        return data

    def stream(self, key: str, start: int, stop: int) -> Iterator[bytes]:
        name = self._name(key)
        check_range(start, stop)
        if start == stop:
            self.size(key)
            return
        with translated(key, write=False):
            url, made_at = self._sign(name, renew=False)

        def address(renew: bool) -> str:
            nonlocal url, made_at
            if renew:
                with translated(key, write=False):
                    url, made_at = self._sign(name, renew=True)
            return url if time.monotonic() - made_at < _RENEWED_S else ""

        yield from self._ranges.stream(key, start, stop, address=address, headers={})

    def size(self, key: str) -> int:
        name = self._name(key)
        with translated(key, write=False):
            return int(self._s3.head_object(**self._at(name))["ContentLength"])

    def put_if_absent(self, key: str, data: bytes) -> None:
        name = self._name(key)
        try:
            self._s3.put_object(
                **self._at(name), Body=data, IfNoneMatch="*", CacheControl=_cache(key)
            )
        except ClientError as error:
            if status_of(error) == 412:
                raise AlreadyExists(key) from None
            raise translate(key, error, write=True) from None
        except RAISED as error:
            raise translate(key, error, write=True) from None

    def put(self, key: str, parts: Iterable[bytes]) -> int:
        name = self._name(key)
        pieces = in_parts(parts)
        first = next(pieces, b"")
        if len(first) < PART_BYTES:
            self._put(key, name, first, _cache(key))
            return len(first)
        upload = Upload(self._s3, self._retries, key, self._at(name), _cache(key))
        return upload.run(first, pieces)

    def replace(self, key: str, data: bytes) -> None:
        self._put(key, self._name(key), data, "no-cache")

    def list_after(self, prefix: str, after: str = "") -> Iterator[str]:
        """See ObjectStore; the names that are found are all held in memory, about 150 bytes each.

        Some stores list `b/c` before `b.d`, as a walk through directories does, so that no order of
        theirs is relied on.
        """
        root = f"{self._address.prefix}/" if self._address.prefix else ""
        where: dict[str, Any] = {"Bucket": self._address.bucket, "Prefix": root + prefix}
        if start := _safe_start(after):
            where["StartAfter"] = root + start
        names: set[str] = set()
        while True:
            with translated(prefix, write=False):
                page = self._s3.list_objects_v2(**where)
            found = (entry["Key"][len(root) :] for entry in page.get("Contents", ()))
            names.update(name for name in found if name > after and is_key(name))
            if not page.get("IsTruncated"):
                break
            where["ContinuationToken"] = page["NextContinuationToken"]
        yield from sorted(names)  # code points sort as their UTF-8 bytes do

    def delete(self, key: str) -> None:
        name = self._name(key)
        with translated(key, write=True):
            self._s3.delete_object(**self._at(name))

    def _range(self, key: str, start: int, stop: int) -> tuple[bytes, int]:
        """Return what there is of bytes [start, stop), and the size of the object."""
        name = self._name(key)
        try:
            answer = self._s3.get_object(**self._at(name), Range=f"bytes={start}-{stop - 1}")
        except ClientError as error:
            if status_of(error) == 416:  # starts at or behind the end
                return b"", self.size(key)
            raise translate(key, error, write=False) from None
        except RAISED as error:
            raise translate(key, error, write=False) from None
        with closing(answer["Body"]) as body, translated(key, write=False):
            found = ContentRange.parse(answer.get("ContentRange"))
            if found is None:
                raise StoreDenied(key, "asked for a range, found a whole object")
            expected = min(stop, found.total) - start
            if found.start != start or found.stop - start != expected:
                raise StoreUnavailable(key, "found another range than was asked for")
            data: bytes = body.read(expected + 1)
        if len(data) != expected:
            raise StoreUnavailable(key, f"expected {expected} bytes, found {len(data)}")
        return data, found.total

    def _put(self, key: str, name: str, data: bytes, cache: str) -> None:
        with translated(key, write=True):
            self._s3.put_object(**self._at(name), Body=data, CacheControl=cache)

    def _name(self, key: str) -> str:
        check_key(key)
        name = f"{self._address.prefix}/{key}" if self._address.prefix else key
        if len(name.encode()) > _KEY_BYTES:
            raise InvalidKey(key, f"expected at most {_KEY_BYTES} bytes with the prefix")
        return name

    def _at(self, name: str) -> dict[str, str]:
        return {"Bucket": self._address.bucket, "Key": name}

    def _sign(self, name: str, *, renew: bool) -> tuple[str, float]:
        """Return an address that anyone can read the object at, for a while, and when it was made.

        It is a secret.
        """
        now = time.monotonic()
        with self._signing:
            url, made_at = self._signed.get(name, ("", 0.0))
            if url and not renew and now - made_at < _RENEWED_S:
                return url, made_at
        url = str(
            self._s3.generate_presigned_url(
                "get_object", Params=self._at(name), ExpiresIn=_SIGNED_S
            )
        )
        with self._signing:
            self._signed.pop(name, None)
            self._signed[name] = url, now
            if len(self._signed) > _SIGNED_KEPT:
                del self._signed[next(iter(self._signed))]
        return url, now


def _cache(key: str) -> str:
    return "no-cache" if key.startswith(_MUTABLE) else _IMMUTABLE_CACHE


def _safe_start(after: str) -> str:
    """Return a name to list from: nothing greater than `after` comes before it in either order.

    A walk puts `a/…` before `a.b`, and may leave out `a/…` after `a`.
    """
    end = next((at for at, char in enumerate(after) if char < "/"), len(after)) - 1
    while end > 0 and after[end] <= "/":
        end -= 1
    return after[: max(end, 0)]


def _client(address: S3Address) -> Any:
    """Return boto3's client; where the road is open to others, it signs what it sends."""
    # botocore tells session tokens and presigned addresses to whoever listens to its debug log.
    logging.getLogger("botocore").setLevel(logging.INFO)
    session = boto3.session.Session()
    client = _configured(session, address, sign_bodies=False)
    parts = web_address(client.meta.endpoint_url, "the endpoint of S3")
    if parts.scheme != "https" and parts.hostname not in _LOOPBACK:
        client = _configured(session, address, sign_bodies=True)
    return client


def _configured(session: Any, address: S3Address, *, sign_bodies: bool) -> Any:
    return session.client(
        "s3",
        endpoint_url=address.endpoint_url,
        region_name=address.region or session.region_name or "us-east-1",
        config=botocore.config.Config(
            signature_version="s3v4",
            s3={
                "addressing_style": address.addressing_style,
                "payload_signing_enabled": sign_bodies,
            },
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            retries={"total_max_attempts": 1, "mode": "standard"},
            connect_timeout=5,
            read_timeout=20,
            max_pool_connections=32,
            tcp_keepalive=True,
        ),
    )
