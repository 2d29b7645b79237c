"""Two real ranks, FSDP2 over gloo: versions are the gathered state, and survive a killed rank."""

from __future__ import annotations

from pathlib import Path

from skerry.island_agent.pull import pull
from skerry.publisher.audit import audit
from skerry.trainer.served import RuleSet
from tests.publisher.samples import read_tree
from tests.trainer.bulletins import assert_nothing_of_the_dead_ranks_step_is_visible, follow
from tests.trainer.installed import torchrun
from tests.trainer.sharded_trainer import RULES

TRAINER = "tests.trainer.sharded_trainer"
LAST = 10
DEATH = 2


def test_packs_of_two_ranks_rebuild_the_gathered_state_also_after_a_rank_was_killed(
    tmp_path: Path,
) -> None:
    killed = torchrun(2, TRAINER, str(tmp_path), str(LAST), str(DEATH))
    assert killed.returncode != 0
    assert_nothing_of_the_dead_ranks_step_is_visible(tmp_path, DEATH)

    again = torchrun(2, TRAINER, str(tmp_path), str(LAST), "-1")
    assert again.returncode == 0, again.stderr
    reader = follow(tmp_path)
    assert list(audit(reader, deep=True)) == []
    commits = reader.state.commits
    assert [(commit.step, commit.parent) for commit in commits.values()] == [
        (step, step - 1 if step else None) for step in range(LAST + 1)
    ]
    for version, commit in commits.items():
        target = tmp_path / "pulled" / str(version)
        pull(reader, target, version)
        assert read_tree(target) == read_tree(tmp_path / "oracle" / str(version))
        manifest = reader.manifest(commit.manifest)
        assert RuleSet.from_recipe(manifest.recipe) == RULES
        assert "frozen.weight" not in [stat.name for stat in manifest.tensors]
        assert len(commit.packs) == (2 if version else 0)  # one of each rank
