"""Answers over HTTP that are no longer than they may be."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import aiohttp


async def read_at_most(answer: aiohttp.ClientResponse, limit_bytes: int) -> tuple[bytes, bool]:
    """Return the body, cut off at a limit, and whether that is all of it."""
    data = bytearray()
    async for piece in answer.content.iter_any():
        data += piece
        if len(data) > limit_bytes:
            return bytes(data[:limit_bytes]), False
    return bytes(data), True
