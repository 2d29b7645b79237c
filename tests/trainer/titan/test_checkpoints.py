"""A run that goes on from any checkpoint finds a version of its step: nothing is lost by a kill."""

from __future__ import annotations

import subprocess
import sys

from tests.trainer.installed import require

require("torchtitan")

# torchtitan is imported in a process of its own: on a CPU it is changed before that.
CHECK = """
from types import SimpleNamespace
from skerry.trainer.titan import cpu
cpu.prepare()
from torchtitan.trainer import Trainer
from skerry.trainer.titan import PublishingTrainer

done = []
publishing = SimpleNamespace(
    start=lambda step: None,
    publish=lambda step: done.append(f"publish {step}"),
    flush=lambda: done.append("flush"),
)
Trainer.train_step = lambda self, batches: None

def steps(**checkpoint):
    trainer = object.__new__(PublishingTrainer)
    trainer.config = SimpleNamespace(
        training=SimpleNamespace(steps=5), checkpoint=SimpleNamespace(**checkpoint)
    )
    trainer.publishing = publishing
    done.clear()
    for trainer.step in range(1, 6):
        trainer.train_step(None)
    return [int(before.split()[1]) for before, it in zip(done, done[1:]) if it == "flush"]

settings = {"interval": 2, "enable_first_step_checkpoint": False}
assert steps(enable=False, **settings) == []
assert steps(enable=True, **settings) == [2, 4, 5], done
assert steps(enable=True, **{**settings, "enable_first_step_checkpoint": True}) == [1, 2, 4, 5]
"""


def test_before_each_checkpoint_that_torchtitan_writes_there_are_versions_of_all_steps() -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHECK], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
