"""The lines that docs/trainers.md asks for configure a run of stock torchtitan."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.trainer.installed import REPOSITORY, require

require("torchtitan")

CHECK = """
from skerry.trainer.titan import PublishingTrainer
config = llama3_8b()
assert type(config) is PublishingTrainer.Config, config
assert config.publishing.bulletin == "s3://bucket/run-7"
assert config.training.steps == stock.llama3_8b().training.steps
"""


def test_the_lines_to_add_make_a_configuration_of_a_stock_one() -> None:
    page = (REPOSITORY / "docs" / "trainers.md").read_text(encoding="utf-8")
    [lines] = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    prepared = "from skerry.trainer.titan import cpu\ncpu.prepare()\n"
    done = subprocess.run(
        [sys.executable, "-c", prepared + lines + CHECK],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
