"""Stock torchtitan on several ranks: every version is its own state dict, gathered and cast."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from _pytest.mark import ParameterSet
from safetensors.torch import load_file

from skerry.bulletin.reader import BulletinReader
from skerry.island_agent.pull import pull
from skerry.publisher.audit import audit
from tests.publisher.samples import read_tree
from tests.trainer.bulletins import assert_nothing_of_the_dead_ranks_step_is_visible, follow
from tests.trainer.installed import require, titan

require("torchtitan")

pytestmark = pytest.mark.timeout(1200)

STEPS = 10
FEW = 3
DEATH = 5
CHECKPOINTS = ["--checkpoint.enable", "--checkpoint.interval", "2"]
EXPORT = ["--checkpoint.last-save-in-hf", "--checkpoint.last-save-model-only"]
EXPORT += ["--checkpoint.export-dtype", "bfloat16"]
TENSOR_PARALLEL = ["--parallelism.tensor-parallel-degree", "2"]
EXPERT_PARALLEL = ["--parallelism.expert-parallel-degree", "2"]
FP8 = ["--publishing.rules", "model.layers.*_proj.weight=FP8_BLOCK,*=BF16"]
FP8_ROWS = ["--publishing.rules", "*.q_proj.weight=FP8_BLOCK,*.up_proj.weight=FP8_BLOCK,*=BF16"]
NOT_AS_EXPORTED = {  # torchtitan casts these; they are served as they are trained
    f"model.layers.{layer}.mlp.gate.e_score_correction_bias" for layer in (1, 2)
}


def check_every_version(root: Path, steps: int) -> BulletinReader:
    """Check that the log has one version of each step in one line, each of the oracle's bytes."""
    reader = follow(root)
    assert list(audit(reader)) == []
    assert [(commit.step, commit.parent) for commit in reader.state.commits.values()] == [
        (step, step - 1 if step else None) for step in range(steps + 1)
    ]
    for version, commit in reader.state.commits.items():
        pull(reader, root / "pulled" / str(version), version)
        oracle = root / "oracle" / str(commit.step)
        assert read_tree(root / "pulled" / str(version)) == read_tree(oracle)
    return reader


def soak(model: str, ranks: int, options: list[str], name: str) -> ParameterSet:
    return pytest.param(model, ranks, STEPS, options, id=name, marks=pytest.mark.soak)


@pytest.mark.parametrize(
    ("model", "ranks", "steps", "options"),
    [
        pytest.param("llama3", 2, STEPS, [*CHECKPOINTS, *EXPORT], id="fsdp-2"),
        pytest.param("llama3", 4, FEW, [*TENSOR_PARALLEL, *FP8_ROWS], id="tp-2-in-fp8"),
        soak("llama3", 4, TENSOR_PARALLEL, "fsdp-2-by-tp-2"),
        soak("qwen3", 4, FP8, "fsdp-4-in-fp8"),
        soak("deepseek_v3", 4, EXPERT_PARALLEL, "fsdp-4-with-ep-2"),
    ],
)
def test_packs_of_all_ranks_rebuild_the_gathered_state_at_every_step(
    model: str, ranks: int, steps: int, options: list[str], tmp_path: Path
) -> None:
    done = titan(tmp_path, ranks, model, "--training.steps", str(steps), *options)
    assert done.returncode == 0, done.stderr[-6000:]
    check_every_version(tmp_path, steps)
    if "--checkpoint.last-save-in-hf" in options:
        check_export(tmp_path, set())


def check_export(root: Path, different: set[str]) -> None:
    """Compare the last version with torchtitan's own export, tensor by tensor."""
    [file] = (root / "checkpoint" / f"step-{STEPS}").glob("*.safetensors")
    exported = load_file(file)
    served = load_file(root / "pulled" / str(STEPS) / "model.safetensors")
    assert exported.keys() == served.keys()
    found = set()
    for name, tensor in exported.items():
        ours = served[name]
        assert torch.equal(ours.to(tensor.dtype).view(torch.int16), tensor.view(torch.int16)), name
        if ours.dtype != tensor.dtype:
            found.add(name)
    assert found == different


def test_a_rank_killed_while_publishing_leaves_a_lineage_that_the_restarted_run_continues(
    tmp_path: Path,
) -> None:
    """With EP 2; at the end every version is looked at, as of a run that nothing happened to."""
    options = [*EXPERT_PARALLEL, *CHECKPOINTS, *EXPORT, "--checkpoint.keep-latest-k", "0"]
    killed = titan(tmp_path, 2, "deepseek_v3", *options, "--death", str(DEATH))
    assert killed.returncode != 0
    assert_nothing_of_the_dead_ranks_step_is_visible(tmp_path, DEATH)

    again = titan(tmp_path, 2, "deepseek_v3", *options)
    assert again.returncode == 0, again.stderr[-6000:]
    reader = check_every_version(tmp_path, STEPS)
    assert [commit.step for commit in reader.state.commits.values() if commit.full] == [0]
    assert all(len(commit.packs) == 2 for commit in reader.state.commits.values() if commit.parent)
    check_export(tmp_path, NOT_AS_EXPORTED)
