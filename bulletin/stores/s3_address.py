"""The address of a run in a bucket: `s3://bucket/prefix?option=value&…`, parsed strictly."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from skerry.bulletin.errors import InvalidKey, UnsupportedStore
from skerry.bulletin.keys import check_key

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]")
_REGION = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,62}")
_STYLES = ("auto", "path", "virtual")
_OPTIONS = ("addressing_style", "endpoint_url", "region")
_FORM = "s3://bucket/prefix?endpoint_url=https://host&region=name&addressing_style=path"


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Address:
    """Where a run lies.  What is None, boto3 takes from its environment and configuration."""

    bucket: str
    prefix: str = ""  # without slashes at its ends
    endpoint_url: str | None = None
    region: str | None = None
    addressing_style: str = "auto"

    @classmethod
    def parse(cls, url: str) -> Self:
        """Raises UnsupportedStore, which does not repeat what may be a secret."""
        try:
            parts = urlsplit(url)
            prefix = unquote(parts.path, errors="strict").strip("/")
            found = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        except ValueError:
            raise UnsupportedStore(f"expected {_FORM}, found something else") from None
        if "@" in parts.netloc:
            raise UnsupportedStore("s3:// takes no credentials: they come from the AWS chain")
        if not _BUCKET.fullmatch(parts.netloc) or parts.fragment:
            raise UnsupportedStore(f"expected {_FORM}, found bucket {parts.netloc!r:.80}")
        options = dict(found)
        if len(options) != len(found) or not options.keys() <= set(_OPTIONS):
            raise UnsupportedStore(f"s3:// takes these options, each once: {', '.join(_OPTIONS)}")
        if prefix:
            try:
                check_key(prefix)
            except InvalidKey as error:
                raise UnsupportedStore(f"the prefix of an s3:// address: {error}") from None
        style = options.get("addressing_style", "auto")
        region = options.get("region")
        if style not in _STYLES:
            raise UnsupportedStore(f"expected addressing_style of {', '.join(_STYLES)}")
        if region is not None and not _REGION.fullmatch(region):
            raise UnsupportedStore("expected a region of letters, digits and '-'")
        endpoint_url = options.get("endpoint_url")
        if endpoint_url is not None:
            host_only(endpoint_url, "endpoint_url")
        return cls(
            bucket=parts.netloc,
            prefix=prefix,
            endpoint_url=endpoint_url,
            region=region,
            addressing_style=style,
        )


def host_only(url: str, what: str) -> None:
    """Raises UnsupportedStore for anything but scheme, host and port."""
    parts = web_address(url, what)
    if parts.path not in ("", "/"):
        raise UnsupportedStore(f"{what}: expected https://host:port, found a path, too")


def web_address(url: str, what: str) -> SplitResult:
    """Return the parts of an HTTP address that holds no secret.  Raises UnsupportedStore."""
    try:
        parts = urlsplit(url)
        sound = parts.hostname is not None and (parts.port is None or parts.port > 0)
    except ValueError:
        sound = False
    if not sound or parts.scheme not in ("http", "https") or not url.isascii():
        raise UnsupportedStore(f"{what}: expected http:// or https:// and a host")
    if parts.username is not None or parts.query or parts.fragment:
        raise UnsupportedStore(f"{what}: expected no user name, no '?' and no '#'")
    return parts
