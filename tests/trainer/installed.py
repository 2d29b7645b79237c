"""Whether torchtitan and others are here; how their runs on several ranks are started in tests."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


def require(*modules: str) -> None:
    """Skip the calling module, loudly, where one of the modules is missing."""
    for module in modules:
        if importlib.util.find_spec(module) is None:
            why = f"{module} is not installed here: `make test-titan` has an environment for it"
            pytest.skip(why, allow_module_level=True)


def torchrun(ranks: int, module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a module on so many ranks of this machine, with a thread each."""
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    path = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, *launch, "-m", module, *arguments],
        cwd=REPOSITORY,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )


def titan(root: Path, ranks: int, model: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Train a model of `tests.trainer.titan.configs`, into `root`, on so many ranks over gloo."""
    (root / "assets").mkdir(exist_ok=True)
    (root / "assets" / "config.json").write_text("{}\n")
    run = ["--module", "tests.trainer.titan.configs", "--config", model]
    run += ["--dump-folder", str(root), "--hf-assets-path", str(root / "assets")]
    run += ["--publishing.bulletin", str(root / "bulletin"), *options]
    return torchrun(ranks, "skerry.trainer.titan.cpu", *run)
