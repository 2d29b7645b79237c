"""The digests of a whole version's weights, kept leaf by leaf so that a patch updates a few."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from skerry.codec.compress import compress, decompress
from skerry.codec.digest import (
    Digest,
    leaf_count,
    leaf_digests,
    tensor_digest,
    version_digest,
)
from skerry.codec.errors import FormatError
from skerry.codec.layout import Layout
from skerry.codec.tensors import Read, TensorSpec

MAX_STORED_BYTES = 1 << 30
_DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsDigest:
    """Leaf digests of every tensor, in the order of the layout's tensor table."""

    tensors: tuple[TensorSpec, ...]
    leaves: tuple[tuple[Digest, ...], ...]

    def leaf(self, tensor: int, number: int) -> Digest:
        """Return the digest of one leaf of a tensor, a number in the table."""
        return self.leaves[tensor][number]

    def version(self) -> Digest:
        """Return the version digest."""
        return version_digest(
            {
                spec.name: tensor_digest(spec.name, spec.dtype, spec.shape, leaves)
                for spec, leaves in zip(self.tensors, self.leaves, strict=True)
            }
        )

    def replace(self, changed: Mapping[str, Mapping[int, Digest]]) -> WeightsDigest:
        """Return the digests with some leaves, by tensor name and leaf number, replaced."""
        unknown = changed.keys() - {spec.name for spec in self.tensors}
        if unknown:
            raise KeyError(min(unknown))
        return WeightsDigest(
            tensors=self.tensors,
            leaves=tuple(
                tuple(changed.get(spec.name, {}).get(i, leaf) for i, leaf in enumerate(leaves))
                for spec, leaves in zip(self.tensors, self.leaves, strict=True)
            ),
        )

    def to_bytes(self) -> bytes:
        """Return the stored form: 32 bytes a leaf, zstd."""
        flat = (bytes.fromhex(leaf) for leaves in self.leaves for leaf in leaves)
        return compress(b"".join(flat))

    @classmethod
    def from_bytes(cls, data: bytes, layout: Layout) -> WeightsDigest:
        """Parse what `to_bytes` gave for weights of this layout.  Raises FormatError."""
        content = decompress(data, MAX_STORED_BYTES)
        counts = [leaf_count(spec.nbytes) for spec in layout.tensors]
        if len(content) != _DIGEST_BYTES * sum(counts):
            raise FormatError(
                f"{sum(counts)} leaf digests expected, found {len(content)} bytes of them"
            )
        flat = iter(
            Digest(content[at : at + _DIGEST_BYTES].hex())
            for at in range(0, len(content), _DIGEST_BYTES)
        )
        return cls(
            tensors=layout.tensors,
            leaves=tuple(tuple(next(flat) for _ in range(count)) for count in counts),
        )


def digest_weights(layout: Layout, read: Read) -> WeightsDigest:
    """Hash all weights, one tensor at a time."""
    return WeightsDigest(
        tensors=layout.tensors,
        leaves=tuple(leaf_digests(read(spec)) for spec in layout.tensors),
    )
