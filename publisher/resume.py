"""Where a restarted trainer goes on in the log: by its step, and by nothing else.

A trainer that starts from its checkpoint of step S goes on from the newest version whose step is at
most S, among the newest version and its ancestors.  If that is the newest version, the lineage
continues.  If it is an older one, what was published after it came of steps that this trainer takes
again, perhaps otherwise: the next version forks from there, and those versions are abandoned.
"""

from __future__ import annotations

from skerry.bulletin.records import Commit
from skerry.bulletin.state import LogState
from skerry.publisher.errors import ResumeRefused


def parent_for(state: LogState, step: int) -> Commit | None:
    """Return the version that a trainer at `step` goes on from; None for a run without versions.

    Raises ResumeRefused when every version is of a later step.
    """
    newest = state.newest
    commit = newest
    while commit is not None and commit.step > step:
        commit = None if commit.parent is None else state.commits[commit.parent]
    if commit is None and newest is not None:
        raise ResumeRefused(step=step, newest=newest.step)
    return commit
