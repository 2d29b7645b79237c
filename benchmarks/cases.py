"""One case of the benchmark: our codec, its rivals and the bounds on one pair of weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from skerry.benchmarks import ours
from skerry.benchmarks.bounds import bounds, count_changed
from skerry.benchmarks.machine import memcpy_speed
from skerry.benchmarks.measure import ENOUGH_S, Measured, measure
from skerry.benchmarks.results import Case, Phase, Row, Speed
from skerry.benchmarks.rival import Rival
from skerry.benchmarks.weights import Pair, as_file, slice_of
from skerry.codec.digest import Bytes
from skerry.codec.level import Level
from skerry.codec.parallel import ordered
from skerry.codec.tensors import TensorSpec
from skerry.codec.weights import digest_weights

Tell = Callable[[str], None]


class NotExact(Exception):
    """A codec gave back other weights than it was given: its figures mean nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How every case is measured."""

    threads: Sequence[int]
    rivals: Sequence[Rival]
    slice_bytes: int  # that slow rivals are measured on
    phases: bool = True
    memcpy: bool = True
    enough_s: float = ENOUGH_S  # of measuring one thing

    def sizes_only(self) -> Plan:
        """Return the plan for a case of which the sizes matter most."""
        quick = [rival for rival in self.rivals if not rival.slow]
        return replace(self, threads=self.threads[-1:], rivals=quick, phases=False)


def run_case(name: str, source: str, dtype: str, pair: Pair, plan: Plan, tell: Tell) -> Case:
    """Measure everything.  Raises NotExact."""
    changed = count_changed(pair)

    def tell_case(what: str) -> None:
        tell(f"{name}: {what}")

    tell_case("bounds")
    bound, free = bounds(pair)
    target = {tensor: old.copy() for tensor, old in pair.old.items()}
    # Here and not once a run: clocks and neighbours change within minutes.
    tell_case("memcpy")
    memcpy = {count: memcpy_speed(count) for count in plan.threads} if plan.memcpy else {}
    rows = list(_ours(pair, target, changed, plan, tell_case))
    phases = []
    if plan.phases:
        default = next(row for row in rows if row.codec == f"Skerry, {Level.DEFAULT}")
        phases = list(_phases(default, pair, target, memcpy, tell_case))
    slow = [rival for rival in plan.rivals if rival.slow]
    rows += [
        _tensor_rival(rival, pair, target, plan.threads, plan, tell_case)
        for rival in plan.rivals
        if not rival.slow
    ]
    del target
    for rival in slow:
        part = slice_of(pair, int(plan.slice_bytes * rival.slice_share))
        rows.append(_slow_rival(rival, part, dtype, plan, tell_case))
    return Case(
        name=name,
        source=source,
        dtype=dtype,
        weights_bytes=pair.nbytes,
        words=sum(spec.words for spec in pair.layout.tensors),
        changed=changed,
        bound=bound.bytes_per_changed,
        free_bound=free.bytes_per_changed,
        memcpy=memcpy,
        rows=rows,
        phases=phases,
    )


def _ours(
    pair: Pair, target: dict[str, Bytes], changed: int, plan: Plan, tell: Tell
) -> Iterator[Row]:
    digests = digest_weights(pair.layout, pair.read_new)
    for level in Level:
        name = f"Skerry, {level}"
        tell(name)
        speeds, packs = [], set()
        for threads in plan.threads:
            data, encoding = measure(
                lambda: ours.encode(pair, level, threads, digests),  # noqa: B023
                enough_s=plan.enough_s,
            )
            _, decoding = measure(
                lambda: ours.apply(pair, data, target, threads),  # noqa: B023
                prepare=lambda: _reset(target, pair),
                enough_s=plan.enough_s,
            )
            _check(name, target, pair)
            packs.add(data)
            speeds.append(_speed(threads, pair, encoding, decoding))
        if len(packs) > 1:
            raise NotExact(f"{name}: the pack depends on the number of threads")
        yield Row(
            codec=name,
            used_by="this repository",
            weights_bytes=pair.nbytes,
            changed=changed,
            encoded_bytes=len(data),
            speeds=speeds,
        )


def _phases(
    default: Row,
    pair: Pair,
    target: dict[str, Bytes],
    memcpy: Mapping[int, float],
    tell: Tell,
) -> Iterator[Phase]:
    def phase(name: str, threads: int, speed: float) -> Phase:
        return Phase(
            name=name,
            threads=threads,
            speed=speed,
            of_memcpy=speed / memcpy[threads],
            of_memcpy_1=speed / memcpy[1],
        )

    for threads, known in zip(memcpy, default.speeds, strict=True):
        yield phase("encode", threads, known.encode)
        yield phase("decode + apply", threads, known.decode)
        for name, work in ours.phases(pair, target, threads):
            tell(f"{name}, {threads} threads")
            _, took = measure(work, prepare=lambda: _reset(target, pair))
            yield phase(name, threads, pair.nbytes / took.seconds)


def _slow_rival(rival: Rival, part: Pair, dtype: str, plan: Plan, tell: Tell) -> Row:
    if missing := rival.missing():
        return Row(codec=rival.name, used_by=rival.used_by, missing=missing)
    own = rival.scope == "file"
    pair = as_file(part, dtype) if own else part
    target = {name: old.copy() for name, old in pair.old.items()}
    row = _tensor_rival(rival, pair, target, [1 if own else max(plan.threads)], plan, tell)
    if not own:
        return row
    speeds = [replace(speed, threads=None) for speed in row.speeds]
    return replace(row, speeds=speeds, changed=count_changed(part))


def _tensor_rival(
    rival: Rival,
    pair: Pair,
    target: dict[str, Bytes],
    threads: Iterable[int],
    plan: Plan,
    tell: Tell,
) -> Row:
    """Measure a rival that gets one tensor after the other, each thread another one."""
    if missing := rival.missing():
        return Row(codec=rival.name, used_by=rival.used_by, missing=missing)
    tell(rival.name)
    speeds, size = [], 0
    for count in threads:
        parts, encoding = measure(
            lambda: _encode(rival, pair, count),  # noqa: B023
            enough_s=plan.enough_s,
        )
        _, decoding = measure(
            lambda: _apply(rival, pair, target, parts, count),  # noqa: B023
            prepare=lambda: _reset(target, pair),
            enough_s=plan.enough_s,
        )
        _check(rival.name, target, pair)
        size = sum(len(part) for tensor in parts for part in tensor)
        speeds.append(_speed(count, pair, encoding, decoding))
    return Row(
        codec=rival.name,
        used_by=rival.used_by,
        weights_bytes=pair.nbytes,
        changed=count_changed(pair),
        encoded_bytes=size,
        speeds=speeds,
    )


def _encode(rival: Rival, pair: Pair, threads: int) -> list[list[bytes]]:
    return list(ordered(lambda it: rival.encode(it[1], it[2]), pair.words(), threads))


def _apply(
    rival: Rival,
    pair: Pair,
    target: Mapping[str, Bytes],
    parts: Sequence[Sequence[bytes]],
    threads: int,
) -> None:
    def patch(work: tuple[TensorSpec, Sequence[bytes]]) -> None:
        spec, encoded = work
        rival.apply(spec.view(target[spec.name]).reshape(spec.shape), encoded)

    for _ in ordered(patch, zip(pair.layout.tensors, parts, strict=True), threads):
        pass


def _reset(target: Mapping[str, Bytes], pair: Pair) -> None:
    for name, old in pair.old.items():
        np.copyto(target[name], old)


def _check(codec: str, target: Mapping[str, Bytes], pair: Pair) -> None:
    for name, new in pair.new.items():
        if not np.array_equal(target[name], new):
            raise NotExact(f"{codec}: {name} came back different")


def _speed(threads: int, pair: Pair, encoding: Measured, decoding: Measured) -> Speed:
    return Speed(
        threads=threads,
        encode=pair.nbytes / encoding.seconds,
        decode=pair.nbytes / decoding.seconds,
        encode_peak_bytes=encoding.peak_bytes,
        decode_peak_bytes=decoding.peak_bytes,
    )
