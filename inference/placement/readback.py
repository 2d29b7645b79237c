"""The checkpoint as the parameters of one process have it: hashed through the map."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from skerry.codec.digest import Bytes, Digest, leaf_digests, tensor_digest, version_digest
from skerry.inference.placement.box import Box
from skerry.inference.placement.checkpoint import MappedCheckpoint
from skerry.inference.placement.placement import Placement, Tensors
from skerry.inference.placement.words import WORDS


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadBack:
    """A version digest; the bits of tensors `from_mirror` no parameter holds, or not whole."""

    digest: Digest
    from_mirror: tuple[str, ...]


def read_back(
    placement: Placement, parameters: Tensors, mirror: MappedCheckpoint | None
) -> ReadBack:
    """Hash every tensor as the parameters hold it.

    Raises LookupError if one is not whole in them and there is no `mirror` to take it from.
    """
    digests: dict[str, Digest] = {}
    from_mirror = []
    for name, spec in placement.specs.items():
        data = gather(placement, parameters, name)
        if data is None:
            if mirror is None:
                raise LookupError(f"{name} is not whole in this process, and there is no mirror")
            data = mirror.data(name)
            from_mirror.append(name)
        digests[name] = tensor_digest(name, spec.dtype, spec.shape, leaf_digests(data))
    return ReadBack(digest=version_digest(digests), from_mirror=tuple(from_mirror))


def gather(placement: Placement, parameters: Tensors, name: str) -> Bytes | None:
    """Return a tensor's bytes out of the parameters; None if they do not hold all of it."""
    spec = placement.specs[name]
    size = spec.type.word
    words = torch.empty(spec.words, dtype=WORDS[size])
    filled = 0
    for box in _cover(placement, name):
        torch.as_strided(words, box.shape, box.strides, box.start).copy_(
            placement.words(box, parameters)
        )
        filled += box.words
    if filled != spec.words:
        return None
    data: Bytes = words.numpy().view(np.uint8)
    return data


def _cover(placement: Placement, name: str) -> Sequence[Box]:
    """Return boxes of a tensor that do not overlap: of several that fill it, the first."""
    boxes = placement.in_place(name)
    whole = [box for box in boxes if box.words == placement.specs[name].words]
    return whole[:1] or boxes
