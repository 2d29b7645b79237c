"""A Hypothesis strategy for whole logs."""

from __future__ import annotations

from hypothesis import strategies as st

from skerry.bulletin.records import Retire, Rotate
from tests.bulletin.log_builder import OTHER_SIGNER, SIGNER, LogBuilder


@st.composite
def logs(draw: st.DrawFn, *, signed: bool = False) -> LogBuilder:
    """Any valid log: patches, fulls, rollbacks, forks, skips, retirements, rotations, fences."""
    signers = [SIGNER] if signed else [SIGNER, None]
    log = LogBuilder(signer=draw(st.sampled_from(signers)))
    log.append(log.fence())
    for _ in range(draw(st.integers(0, 12))):
        state = log.state
        versions = [v for v in state.commits if v not in state.retired]
        kinds = ["fence", "full"]
        if versions:
            kinds += ["patch", "patch", "patch", "both", "unchanged"]
        if len(versions) > 1:
            kinds += ["skip", "retire"]
        if log.signer is not None:
            kinds += ["rotate"]
        kind = draw(st.sampled_from(kinds))
        if kind == "fence":
            log.append(log.fence(), writer=draw(st.sampled_from(["writer", "other"])))
            continue
        writer = state.writer
        if kind == "rotate":
            following = draw(st.sampled_from([SIGNER, OTHER_SIGNER]))
            log.append(Rotate(key=following.public_key), writer=writer)
            log.signer = following
        elif kind == "full":
            parent = draw(st.sampled_from([None, *versions]))
            log.append(log.full(parent=parent), writer=writer)
        elif kind == "skip":
            a, b = draw(st.lists(st.sampled_from(versions), min_size=2, max_size=2, unique=True))
            log.append(log.skip(a, b), writer=writer)
        elif kind == "retire":
            assert state.newest is not None
            gone = draw(st.sampled_from([v for v in versions if v != state.newest.version]))
            names = tuple(sorted(pack.key for pack in state.commits[gone].packs))
            log.append(Retire(versions=(gone,), keys=names, grace_s=60), writer=writer)
        else:
            parent = draw(st.sampled_from(versions))
            packs = 0 if kind == "unchanged" else draw(st.integers(1, 2))
            commit = log.patch(parent=parent, packs=packs, with_full=kind == "both")
            log.append(commit, writer=writer)
    return log
