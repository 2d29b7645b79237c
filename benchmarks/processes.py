"""Ending what a benchmark has started."""

from __future__ import annotations

import signal
import subprocess
from typing import Any


def stop_process(
    process: subprocess.Popen[Any], limit_s: float, how: signal.Signals = signal.SIGTERM
) -> None:
    """Signal a process and wait for its end; after `limit_s` it is killed."""
    process.send_signal(how)
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
