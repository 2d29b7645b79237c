"""Routed experts of one sequence: which experts made its tokens, as engines send them.

The bytes are those of an `.npy` file, as vLLM's: [tokens - 1, layers, experts of a token], prompt
and output in one, without the last token, which nothing was computed from yet.  Whoever passes
them on does not look inside; a trainer reads them strictly.
"""

from __future__ import annotations

import io
import math

import numpy as np
import numpy.typing as npt

Experts = npt.NDArray[np.integer]
_TYPES = {np.dtype(name) for name in ("u1", "<u2", "<i4")}
_MAX_HEADER_CHARS = 1024


class RoutedExpertsInvalid(ValueError):
    """What came as routed experts are none, or are another model's: the rollout cannot be used."""


def encode_routed(experts: npt.ArrayLike, *, count: int) -> bytes:
    """Return the bytes that stand for `experts` [tokens - 1, layers, per token] of `count`."""
    kind = np.uint8 if count <= 1 << 8 else np.dtype("<u2")
    buffer = io.BytesIO()
    np.save(buffer, np.ascontiguousarray(np.asarray(experts), kind), allow_pickle=False)
    return buffer.getvalue()


def decode_routed(data: bytes, *, shape: tuple[int, int, int], count: int) -> Experts:
    """Read routed experts of `shape`, each below `count` and once a token.

    Raises RoutedExpertsInvalid.
    """
    buffer = io.BytesIO(data)
    try:
        if np.lib.format.read_magic(buffer) != (1, 0):
            raise RoutedExpertsInvalid("routed experts: expected .npy 1.0")
        found, columns_first, kind = np.lib.format.read_array_header_1_0(
            buffer, max_header_size=_MAX_HEADER_CHARS
        )
    except (ValueError, EOFError) as error:
        raise RoutedExpertsInvalid(f"routed experts: not .npy bytes: {error}") from None
    if found != shape or columns_first or kind not in _TYPES:
        raise RoutedExpertsInvalid(
            f"routed experts: expected {shape} of u1, u2 or i4, found {found} of {kind}"
        )
    rest = data[buffer.tell() :]
    if len(rest) != math.prod(shape) * kind.itemsize:
        raise RoutedExpertsInvalid(f"routed experts: {len(rest)} bytes are not {shape} of {kind}")
    experts: Experts = np.frombuffer(rest, kind).reshape(shape)
    ordered = np.sort(experts, axis=-1)
    if experts.size and (ordered.min() < 0 or ordered.max() >= count):
        raise RoutedExpertsInvalid(f"routed experts: expected 0..{count - 1}, found others")
    if (ordered[..., 1:] == ordered[..., :-1]).any():
        raise RoutedExpertsInvalid("routed experts: a token has one expert twice")
    return experts
