"""zstd frames from untrusted bytes: one frame, the whole input, a known size, a limit first."""

from __future__ import annotations

import zstandard

from skerry.codec.errors import FormatError, LimitExceeded

_LEVEL = 3


def compress(data: bytes, level: int = _LEVEL) -> bytes:
    """Return one zstd frame that states its content size."""
    compressor = zstandard.ZstdCompressor(
        level=level, write_content_size=True, write_checksum=False
    )
    return compressor.compress(data)


def decompress(data: bytes, limit_bytes: int) -> bytes:
    """Return what one zstd frame holds.

    Refused: more than `limit_bytes` (LimitExceeded), a frame without its size, anything before or
    after the one frame (a second frame would otherwise be dropped in silence), damage.
    """
    try:
        size = zstandard.frame_content_size(data)
    except zstandard.ZstdError as error:
        raise FormatError("not a zstd frame") from error
    if size < 0:
        raise FormatError("the zstd frame does not state its content size")
    if size > limit_bytes:
        raise LimitExceeded(f"{size} bytes unpacked, the limit is {limit_bytes}")
    reader = zstandard.ZstdDecompressor().decompressobj()
    try:
        content = reader.decompress(data)
    except zstandard.ZstdError as error:
        raise FormatError("the zstd frame is damaged") from error
    if not reader.eof or len(content) != size:
        raise FormatError(f"the zstd frame ends after {len(content)} of {size} bytes")
    if reader.unused_data:
        raise FormatError(f"{len(reader.unused_data)} bytes follow the zstd frame")
    return content
