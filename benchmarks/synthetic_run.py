"""A long run made up for inspection: real records, layouts and manifests, weights that are nothing.

Records are signed, and verified as a reader would before they are stored.  Changed shares follow a
learning rate that warms up and decays, differ by layer and projection, and now and then jump; there
are anchors, rollbacks, skip patches, a retired beginning, and islands in every state.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from skerry.bulletin import keys
from skerry.bulletin.bodies import Retire, download_bytes
from skerry.bulletin.hint import Hint
from skerry.bulletin.manifest import Manifest
from skerry.bulletin.records import (
    Body,
    Commit,
    Fence,
    FileRef,
    Full,
    ObjectRef,
    Record,
    Skip,
)
from skerry.bulletin.signing import Signer
from skerry.bulletin.state import LogState
from skerry.bulletin.status import IslandReport
from skerry.bulletin.store import ObjectStore
from skerry.codec.digest import Digest, digest_bytes
from skerry.codec.header import build_header
from skerry.codec.layout import Layout, Shard
from skerry.codec.tensors import TensorStat

SIGNER = Signer.from_seed(b"\x07" * 32)
_FILE = "model.safetensors"
_PROJECTIONS = {
    "self_attn.q_proj": (4, 4, 1.0),
    "self_attn.k_proj": (4, 1, 1.6),
    "self_attn.v_proj": (4, 1, 2.2),
    "self_attn.o_proj": (4, 4, 1.3),
    "mlp.gate_proj": (4, 11, 0.8),
    "mlp.up_proj": (4, 11, 0.9),
    "mlp.down_proj": (11, 4, 0.7),
    "input_layernorm": (1, 4, 0.02),
    "post_attention_layernorm": (1, 4, 0.03),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How much there is of everything."""

    versions: int = 5000
    islands: int = 200
    layers: int = 24
    width: int = 16  # words to a unit of a projection's sides
    anchor_every: int = 500
    rollback_every: int = 700
    skip_over: int = 64
    retired: int = 400
    interval_ms: int = 45_000


def make_run(store: ObjectStore, shape: Shape, *, now_ms: int, seed: int = 0) -> None:
    """Write a run that ends a minute before `now_ms`, and the islands that follow it."""
    rng = random.Random(seed)
    layout = _layout(shape)
    begin_ms = now_ms - 60_000 - shape.versions * shape.interval_ms
    log = _Log(store, begin_ms)
    data = layout.to_bytes()
    named = digest_bytes(data)
    store.put(keys.layout(named), [data])
    words = [(spec.name, spec.words) for spec in layout.tensors]
    total = sum(count for _, count in words)
    results: list[Digest] = []
    for version in range(shape.versions):
        log.time_ms += shape.interval_ms
        parent = _parent(version, shape)
        stats = [] if parent is None else list(_stats(words, version, shape, rng))
        data = Manifest(layout=named, tensors=tuple(stats)).to_bytes()
        manifest = digest_bytes(data)
        store.put(keys.manifest(manifest), [data])
        full = log.full(layout.shards[0], version) if version % shape.anchor_every == 0 else None
        changed = sum(stat.changed for stat in stats)
        packs = () if parent is None else (log.pack(rng.randbytes(max(40, changed * 9 // 10))),)
        base = None if parent is None else results[parent]
        results.append(digest_bytes(f"{seed} weights {version}".encode()))
        log.append(
            Commit(
                version=version, parent=parent, step=2 * version, layout=named, manifest=manifest,
                base=base, result=results[-1], packs=packs, full=full, elements=total,
                changed=None if parent is None else changed,
                nbytes=download_bytes(base, packs, full),
            )
        )  # fmt: skip
        start = version - shape.skip_over
        if start >= 0 and version % shape.skip_over == 0:
            over = (log.pack(rng.randbytes(max(60, changed * 9))),)
            log.append(
                Skip(
                    base_version=start, version=version, base=results[start],
                    result=results[version], packs=over,
                )
            )  # fmt: skip
    _retire(log, shape)
    log.hint()
    for report in reports(log.state, shape, now_ms=now_ms, rng=rng):
        store.replace(keys.island(report.island), report.to_bytes())


def reports(
    state: LogState, shape: Shape, *, now_ms: int, rng: random.Random
) -> Iterator[IslandReport]:
    """Make up what islands say: most are well, some of each kind are not."""
    assert state.newest is not None
    newest = state.newest.version
    gone = sorted(state.abandoned - state.retired)
    for number in range(shape.islands):
        lag = min(newest, 0 if number % 3 else rng.randrange(1, 6))
        error, age_ms, phase = None, rng.randrange(25_000), "idle"
        held: int | None = newest - lag
        match number % 40:
            case 3:
                age_ms = 3_600_000
            case 11:
                held, lag = None, newest + 1
            case 17:
                error, phase = "StoreUnavailable: no answer in 10 s", "retrying"
            case 29 if gone:
                held = gone[-1]
            case 31:
                phase = "stopped"
        while held is not None and held in state.abandoned and number % 40 != 29:
            held += 1
        yield IslandReport(
            island=f"{('eu', 'us', 'ap')[number % 3]}-{number:03d}",
            run=state.run,
            version=held,
            target=newest,
            newest=newest,
            lag=lag,
            phase="fetching" if lag and phase == "idle" else phase,
            error=error,
            engines={"cpu": held},
            nbytes=1000 * lag,
            total_bytes=5000 if lag else 0,
            time_ms=now_ms - age_ms,
        )


def _parent(version: int, shape: Shape) -> int | None:
    if version == 0:
        return None
    back = min(version, 4) if version % shape.rollback_every == 0 else 1
    return version - back


def _stats(
    words: Sequence[tuple[str, int]], version: int, shape: Shape, rng: random.Random
) -> Iterator[TensorStat]:
    progress = version / shape.versions
    rate = min(1.0, version / 100) * (0.55 + 0.45 * math.cos(math.pi * progress))
    jump = 6.0 if version % 977 == 976 else 1.0
    for name, count in words:
        layer, factor = _place(name)
        depth = 0.6 + 0.8 * layer / shape.layers
        share = 0.006 * rate * jump * depth * factor * rng.uniform(0.8, 1.25)
        changed = min(count, int(count * share + rng.random()))
        if changed:
            nbytes = max(1, int(changed * 0.9))
            yield TensorStat(name=name, changed=changed, words=count, nbytes=nbytes)


def _place(name: str) -> tuple[int, float]:
    parts = name.split(".")
    if "layers" not in parts:
        return 0, 0.1
    return int(parts[2]), _PROJECTIONS[".".join(parts[3:-1])][2]


def _layout(shape: Shape) -> Layout:
    width = shape.width
    tensors: list[tuple[str, str, Sequence[int]]] = [
        ("model.embed_tokens.weight", "BF16", [64 * width, 4 * width]),
        ("model.norm.weight", "BF16", [4 * width]),
    ]
    for layer in range(shape.layers):
        for name, (rows, columns, _) in _PROJECTIONS.items():
            sides = [columns * width] if rows == 1 else [rows * width, columns * width]
            tensors.append((f"model.layers.{layer}.{name}.weight", "BF16", sides))
    header = build_header(_FILE, tensors)
    size = len(header.raw) + sum(tensor.nbytes for tensor in header.tensors)
    return Layout(shards=(Shard(name=_FILE, size=size, header=header.raw),))


def _retire(log: _Log, shape: Shape) -> None:
    """Give up the first versions: half of them long ago, half just now."""
    commits = log.state.commits
    gone = range(min(shape.retired, shape.anchor_every, len(commits) - 1))
    for part, grace_s in ((gone[: len(gone) // 2], 60), (gone[len(gone) // 2 :], 7 * 86_400)):
        names = {ref.key for version in part for ref in commits[version].packs}
        if part:
            versions = tuple(part)
            log.append(Retire(versions=versions, keys=tuple(sorted(names)), grace_s=grace_s))


class _Log:
    """A log of one epoch.  Every record is verified as a reader would before it is stored."""

    def __init__(self, store: ObjectStore, time_ms: int) -> None:
        self.state = LogState()
        self.time_ms = time_ms
        self._store = store
        self.append(Fence(key=SIGNER.public_key))

    def append(self, body: Body) -> None:
        record = Record(
            seq=self.state.seq + 1,
            prev=self.state.head,
            epoch=1,
            writer="trainer-0",
            nonce=f"{self.state.seq + 1:032x}",
            time=self.time_ms,
            body=body,
        ).signed(SIGNER)
        data = record.to_bytes()
        self.state = self.state.apply(data)
        self._store.put_if_absent(keys.log(record.seq), data)

    def pack(self, data: bytes) -> ObjectRef:
        digest = digest_bytes(data)
        key = keys.pack(1, digest)
        self._store.put(key, [data])
        return ObjectRef(key=key, size=len(data), digest=digest)

    def full(self, shard: Shard, version: int) -> Full:
        data = shard.header + bytes(shard.size - len(shard.header))
        file = FileRef(name=shard.name, size=shard.size, digest=digest_bytes(data))
        full = Full(prefix=keys.full_prefix(1, f"{version:032x}"), files=(file,))
        self._store.put(full.ref(file).key, [data])
        return full

    def hint(self) -> None:
        assert self.state.head is not None
        hint = Hint(seq=self.state.seq, digest=self.state.head, checkpoint=None)
        self._store.replace(keys.HINT, hint.to_bytes())
