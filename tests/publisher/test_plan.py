"""Full, patch or both: each reason, from figures alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.bulletin.records import Commit, FileRef, Full
from skerry.codec.digest import Digest
from skerry.publisher import PublisherConfig
from skerry.publisher.plan import Chain, chain_to, decide

DIGEST = Digest("0" * 64)


def commit(version: int, *, full: bool, nbytes: int = 10) -> Commit:
    files = (FileRef(name="model.safetensors", size=1000, digest=DIGEST),)
    return Commit(
        version=version,
        parent=version - 1 if version else None,
        step=version,
        layout=DIGEST,
        manifest=DIGEST,
        base=DIGEST if version else None,
        result=DIGEST,
        packs=(),
        full=Full(prefix="full/00000001-" + "0" * 32, files=files) if full else None,
        elements=1,
        changed=None,
        nbytes=nbytes,
    )


def log(fulls: Sequence[bool]) -> dict[int, Commit]:
    return {v: commit(v, full=full) for v, full in enumerate(fulls)}


@given(st.lists(st.booleans(), max_size=20))
def test_the_chain_reaches_back_to_the_nearest_full(fulls: list[bool]) -> None:
    commits = log([True, *fulls])
    newest = len(fulls)
    chain = chain_to(commits, newest)
    anchor = max(v for v, full in enumerate([True, *fulls]) if full)
    assert chain == Chain(anchor=anchor, versions=newest - anchor, nbytes=10 * (newest - anchor))


@pytest.mark.parametrize(
    ("chain", "difference", "patch", "forced", "expected"),
    [
        (None, "", None, False, (False, True, "first version")),
        ((3, 100), "tensor x is new", None, False, (False, True, "structure changed")),
        ((3, 100), "", None, True, (False, True, "without the parent's bytes")),
        ((3, 100), "", 1000, False, (False, True, "1000 bytes, the full form 1000")),
        ((3, 100), "", 999, False, (True, False, "smaller")),
        ((3, 100), "", 0, False, (True, False, "nothing changed")),
        ((3, 100), "", 10, True, (True, True, "forced")),
        ((9, 100), "", 10, False, (True, True, "10 versions since version 7")),
        ((3, 1991), "", 10, False, (True, True, "2001 bytes of patches")),
        ((3, 1990), "", 10, False, (True, False, "smaller")),
    ],
)
def test_each_reason_has_its_form(
    chain: tuple[int, int] | None,
    difference: str,
    patch: int | None,
    forced: bool,
    expected: tuple[bool, bool, str],
) -> None:
    decision = decide(
        chain=None if chain is None else Chain(anchor=7, versions=chain[0], nbytes=chain[1]),
        difference=difference,
        patch_bytes=patch,
        full_bytes=1000,
        forced=forced,
        config=PublisherConfig(anchor_versions=10, anchor_ratio=2.0),
    )
    assert (decision.patch, decision.full) == expected[:2]
    assert expected[2] in decision.reason


def test_a_config_that_makes_no_sense_is_refused() -> None:
    for wrong in ({"anchor_versions": 0}, {"anchor_ratio": 0.0}, {"writer": ""}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            PublisherConfig(**wrong)
