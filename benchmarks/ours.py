"""Our own codec as the benchmark runs it: at every level, and phase by phase.

Digests stay out of the figures unless a phase says so: a publisher and an agent have those of the
weights anyway.  Hashing takes all cores, however many threads the codec has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from skerry.benchmarks.weights import Pair
from skerry.codec import kernel
from skerry.codec.digest import Bytes, Digest
from skerry.codec.encode import encode_pack
from skerry.codec.fold import apply_pack, fold_changes
from skerry.codec.level import Level
from skerry.codec.pack import Pack
from skerry.codec.parallel import ordered
from skerry.codec.weights import WeightsDigest, digest_weights

Target = Mapping[str, Bytes]

_BASE = Digest("0" * 64)  # nobody looks it up here


def encode(pair: Pair, level: Level, threads: int, digests: WeightsDigest | None) -> bytes:
    """Return the pack.  Without `digests`, those of the new weights, changed leaves are hashed."""
    return encode_pack(
        pair.layout,
        pair.read_old,
        pair.read_new,
        base=_BASE,
        level=level,
        threads=threads,
        digests=digests,
    ).data


def apply(pair: Pair, data: bytes, target: Target, threads: int) -> None:
    """Decode a pack and patch `target`, which holds the old weights."""
    pack = Pack.parse(data, pair.layout)
    apply_pack(pair.layout, pack, lambda spec: target[spec.name], threads=threads)


def apply_checked(pair: Pair, data: bytes, target: Target, threads: int) -> None:
    """The same as an agent does it: check the digest of every changed leaf, then write."""
    pack = Pack.parse(data, pair.layout)
    write = kernel.current().apply
    for changes in fold_changes(
        pair.layout, [pack], lambda spec: target[spec.name], threads=threads
    ):
        words = changes.spec.view(target[changes.spec.name])
        write(words, changes.positions, changes.new)


def phases(pair: Pair, target: Target, threads: int) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield what else to measure at the default level; each begins with the old weights."""
    data = encode(pair, Level.DEFAULT, threads, None)

    def scan() -> int:
        find = kernel.current().find_changes
        tensors = ((old.reshape(-1), new.reshape(-1)) for _, old, new in pair.words())
        return sum(ordered(lambda both: find(*both).size, tensors, threads))

    yield "scan", scan
    yield "encode + BLAKE3", lambda: encode(pair, Level.DEFAULT, threads, None)
    yield "decode + BLAKE3 + apply", lambda: apply_checked(pair, data, target, threads)
    yield "BLAKE3 of all weights", lambda: digest_weights(pair.layout, pair.read_new)
