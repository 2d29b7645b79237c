"""Hypothesis strategies for what records are made of."""

from __future__ import annotations

from hypothesis import strategies as st

from skerry.bulletin import keys
from skerry.bulletin.bodies import download_bytes
from skerry.bulletin.manifest import Manifest
from skerry.bulletin.records import (
    Body,
    Commit,
    Fence,
    FileRef,
    Full,
    ObjectRef,
    Record,
    Retire,
    Rotate,
    Skip,
)
from skerry.bulletin.signing import PublicKey
from skerry.codec.digest import Digest, digest_bytes
from skerry.codec.errors import FormatError
from skerry.codec.names import check_name
from skerry.codec.tensors import TensorStat


def _is_name(text: str) -> bool:
    try:
        check_name(text)
    except FormatError:
        return False
    return all(len(part.encode()) <= 255 for part in text.split("/"))


numbers = st.one_of(st.integers(0, 300), st.integers(0, 2**63 - 1))
sizes = st.integers(1, 10**12)
digests: st.SearchStrategy[Digest] = st.integers(0, 2**32).map(
    lambda n: digest_bytes(n.to_bytes(8, "little"))
)
epochs = st.integers(1, keys.MAX_EPOCH)
nonces = st.integers(0, 2**128 - 1).map("{:032x}".format)
public_keys = digests.map(PublicKey)
file_names = st.text(min_size=1, max_size=40).filter(_is_name)


@st.composite
def object_refs(draw: st.DrawFn) -> ObjectRef:
    digest = draw(digests)
    return ObjectRef(key=keys.pack(draw(epochs), digest), size=draw(sizes), digest=digest)


packs = st.lists(object_refs(), max_size=4, unique_by=lambda ref: ref.key).map(tuple)


@st.composite
def fulls(draw: st.DrawFn) -> Full:
    names = sorted(draw(st.sets(file_names, min_size=1, max_size=4)))
    files = tuple(
        FileRef(name=name, size=draw(st.integers(0, 10**12)), digest=draw(digests))
        for name in names
    )
    return Full(prefix=keys.full_prefix(draw(epochs), draw(nonces)), files=files)


@st.composite
def commits(draw: st.DrawFn) -> Commit:
    form = draw(st.sampled_from(["patch", "full", "both", "unchanged"]))
    version = draw(st.integers(1, 2**63 - 1))
    patch_packs = draw(packs.filter(bool)) if form in ("patch", "both") else ()
    full = draw(fulls()) if form in ("full", "both") else None
    base = None if form == "full" else draw(digests)
    elements = draw(numbers)
    parent = st.integers(0, version - 1)
    return Commit(
        version=version,
        parent=draw(st.none() | parent) if base is None else draw(parent),
        step=draw(numbers),
        layout=draw(digests),
        manifest=draw(digests),
        base=base,
        result=base if form == "unchanged" and base is not None else draw(digests),
        packs=patch_packs,
        full=full,
        elements=elements,
        changed=draw(st.none() | st.integers(0, elements)),
        nbytes=download_bytes(base, patch_packs, full),
    )


@st.composite
def skips(draw: st.DrawFn) -> Skip:
    versions = draw(st.lists(numbers, min_size=2, max_size=2, unique=True))
    return Skip(
        base_version=versions[0],
        version=versions[1],
        base=draw(digests),
        result=draw(digests),
        packs=draw(packs.filter(bool)),
    )


retires = st.builds(
    Retire,
    versions=st.sets(numbers, max_size=4).map(lambda found: tuple(sorted(found))),
    keys=st.sets(
        object_refs().map(lambda ref: ref.key) | fulls().map(lambda full: full.prefix),
        min_size=1,
        max_size=4,
    ).map(lambda found: tuple(sorted(found))),
    grace_s=numbers,
)

bodies: st.SearchStrategy[Body] = st.one_of(
    st.builds(Fence, key=st.none() | public_keys),
    commits(),
    skips(),
    retires,
    st.builds(Rotate, key=public_keys),
)

records = st.builds(
    Record,
    seq=numbers,
    prev=st.none() | digests,
    epoch=epochs,
    writer=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,20}", fullmatch=True),
    nonce=nonces,
    time=numbers,
    body=bodies,
    signature=st.none() | st.tuples(digests, digests).map("".join),
)

tensor_names = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=20)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    names = sorted(draw(st.sets(tensor_names, max_size=4)))
    stats = []
    for name in names:
        words = draw(numbers)
        changed = draw(st.integers(0, words))
        stats.append(TensorStat(name=name, changed=changed, words=words, nbytes=draw(numbers)))
    return Manifest(
        layout=draw(digests),
        side_files=tuple(sorted(draw(st.sets(file_names, max_size=3)))),
        tensors=tuple(stats),
        leaves=draw(
            st.dictionaries(tensor_names, st.dictionaries(numbers, digests, max_size=3), max_size=3)
        ),
        recipe=draw(st.dictionaries(tensor_names, st.none() | numbers | tensor_names, max_size=3)),
    )
