"""The only module that spells an object key.

Law: what `check_key` accepts is a relative path of one spelling, safe below any root directory.
"""

from __future__ import annotations

import re

from skerry.bulletin.errors import InvalidKey
from skerry.codec.digest import Digest

MAX_EPOCH = 99_999_999  # eight digits in a key
TEMPORARY = ".skerry-tmp-"  # names of unfinished files in a directory store; never a key
HINT = "hint/latest.json"
COST = "hint/cost.json"
LOG_PREFIX = "log/"
CHECKPOINT_PREFIX = "checkpoints/"
PROBE_PREFIX = "hint/probe-"
PACK_PREFIX = "packs/"
FULL_PREFIX = "full/"
LAYOUT_PREFIX = "layouts/"
MANIFEST_PREFIX = "manifests/"
ISLAND_PREFIX = "islands/"

_KEY_BYTES = 1024  # the limit of S3
_SEGMENT_BYTES = 255  # the limit of file systems
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_LOG = re.compile(r"log/([0-9]{20})\.json")
_PACK = re.compile(r"packs/([0-9]{8})/([0-9a-f]{64})")
_NAMED = re.compile(r"(?:packs/[0-9]{8}|layouts|manifests)/([0-9a-f]{64})")
_FULL = re.compile(r"full/([0-9]{8})-([0-9a-f]{16,64})")
_CHECKPOINT = re.compile(r"checkpoints/([0-9]{20})\.json")
_ISLAND = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_NONCE = re.compile(r"[0-9a-f]{16,64}")


def check_key(key: object) -> str:
    """Return `key` if it is one.  Raises InvalidKey."""
    if not isinstance(key, str) or not key:
        raise InvalidKey(key, "expected a non-empty string")
    try:
        encoded = key.encode()
    except UnicodeEncodeError:
        raise InvalidKey(key, "expected valid Unicode, found a lone surrogate") from None
    if len(encoded) > _KEY_BYTES:
        raise InvalidKey(key, f"expected at most {_KEY_BYTES} bytes, found {len(encoded)}")
    if "\\" in key or _CONTROL.search(key):
        raise InvalidKey(key, "found a backslash or a control character")
    for segment in key.split("/"):
        if segment in ("", ".", ".."):
            raise InvalidKey(key, f"found the path segment {segment!r}")
        if len(segment.encode()) > _SEGMENT_BYTES:
            raise InvalidKey(key, f"expected path segments of at most {_SEGMENT_BYTES} bytes")
        if segment.startswith(TEMPORARY):
            raise InvalidKey(key, f"names that start with {TEMPORARY} are reserved")
    return key


def is_key(key: object) -> bool:
    """Return whether `check_key` accepts `key`."""
    try:
        check_key(key)
    except InvalidKey:
        return False
    return True


def log(seq: int) -> str:
    return f"{LOG_PREFIX}{seq:020d}.json"


def parse_log(key: str) -> int:
    """Return the slot that a record's key names.  Raises InvalidKey."""
    match = _LOG.fullmatch(key)
    if match is None:
        raise InvalidKey(key, "expected log/<seq, 20 digits>.json")
    return int(match[1])


def named_digest(key: str) -> Digest | None:
    """Return the digest that the key itself names: of a pack, a layout or a manifest."""
    match = _NAMED.fullmatch(key)
    return None if match is None else Digest(match[1])


def layout(digest: Digest) -> str:
    return f"{LAYOUT_PREFIX}{digest}"


def manifest(digest: Digest) -> str:
    return f"{MANIFEST_PREFIX}{digest}"


def pack(epoch: int, digest: Digest) -> str:
    return f"packs/{epoch:08d}/{digest}"


def parse_pack(key: str) -> tuple[int, Digest]:
    """Return the epoch and the digest in a pack's key.  Raises InvalidKey."""
    match = _PACK.fullmatch(key)
    if match is None:
        raise InvalidKey(key, "expected packs/<epoch, 8 digits>/<digest>")
    return int(match[1]), Digest(match[2])


def full_prefix(epoch: int, nonce: str) -> str:
    """Return the directory of a full version, without a slash at its end."""
    if not _NONCE.fullmatch(nonce):
        raise InvalidKey(nonce, "expected a nonce of 16 to 64 hex digits")
    return f"full/{epoch:08d}-{nonce}"


def parse_full_prefix(prefix: str) -> int:
    """Return the epoch in the directory of a full version.  Raises InvalidKey."""
    match = _FULL.fullmatch(prefix)
    if match is None:
        raise InvalidKey(prefix, "expected full/<epoch, 8 digits>-<nonce>")
    return int(match[1])


def full_file(prefix: str, name: str) -> str:
    return check_key(f"{prefix}/{name}")


def checkpoint(seq: int) -> str:
    return f"{CHECKPOINT_PREFIX}{seq:020d}.json"


def parse_checkpoint(key: str) -> int:
    """Return the slot of the last record that a checkpoint sums up.  Raises InvalidKey."""
    match = _CHECKPOINT.fullmatch(key)
    if match is None:
        raise InvalidKey(key, "expected checkpoints/<seq, 20 digits>.json")
    return int(match[1])


def island(island_id: str) -> str:
    """Return the key of an island's status.  Raises InvalidKey for an id that is no plain name."""
    if not _ISLAND.fullmatch(island_id):
        raise InvalidKey(island_id, "expected an island id of 1 to 64 letters, digits, '._-'")
    return f"{ISLAND_PREFIX}{island_id}.json"


def probe(nonce: str) -> str:
    """Return the scratch key on which a store's conditions are tried out."""
    return f"{PROBE_PREFIX}{nonce}"
