"""Where torchtitan or Transformers is missing, the error names what brings it."""

from __future__ import annotations

import subprocess
import sys

import pytest

HIDE = "import sys; sys.modules[{!r}] = None; "


@pytest.mark.parametrize(
    ("hidden", "wanted", "extra"),
    [
        ("torchtitan", "skerry.trainer.titan import publishing", "skerry[torchtitan]"),
        ("transformers", "skerry.trainer.hugging_face import x", "skerry[transformers]"),
    ],
)
def test_a_missing_trainer_is_told_with_the_extra_that_brings_it(
    hidden: str, wanted: str, extra: str
) -> None:
    code = HIDE.format(hidden) + f"from {wanted}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ModuleNotFoundError: publishing from")
    assert f"pip install '{extra}'" in last
