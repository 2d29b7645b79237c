"""The commands on a bucket, and on a web server in front of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from skerry.bulletin.stores import LocalStore, open_store
from skerry.publisher import Checkpoint
from tests.servers.web import serve


def skerry(*arguments: str, code: int = 0) -> str:
    command = [sys.executable, "-m", "skerry", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == code, done.stderr
    return done.stdout


def test_a_run_in_a_bucket_is_published_and_pulled_also_through_a_web_server(
    run_url: str, tmp_path: Path
) -> None:
    key = tmp_path / "run.key"
    skerry("keygen", str(key))
    weights = {"w": np.arange(500_000, dtype=np.float32)}
    for step in range(2):
        weights["w"][::1000] += step
        directory = tmp_path / f"step-{step}"
        Checkpoint.from_arrays(weights, side_files={"config.json": b"{}"}).write_to(directory)
        skerry("publish", run_url, str(directory), "--step", str(step), "--sign", str(key))
    expected = (tmp_path / "step-1" / "model.safetensors").read_bytes()
    pin = ("--key", f"{key}.pub")
    skerry("pull", run_url, str(tmp_path / "pulled"), *pin)
    assert (tmp_path / "pulled" / "model.safetensors").read_bytes() == expected

    served, store = LocalStore(tmp_path / "served"), open_store(run_url)
    for name in store.list_after(""):
        served.put(name, store.stream(name, 0, store.size(name)))
    with serve(tmp_path / "served") as server:
        skerry("pull", server.url, str(tmp_path / "from-web"), *pin)
        log = json.loads(skerry("log", server.url, "--json", *pin))
        assert log
        # Half of it is gone from the copy: the rest comes from the bucket.
        for name in list(served.list_after("packs/")):
            served.delete(name)
        mirrors = f"{server.url},{run_url}"
        skerry("pull", mirrors, str(tmp_path / "from-both"), *pin)
        failed = json.loads(
            skerry(
                "publish",
                server.url,
                str(tmp_path / "step-1"),
                "--sign",
                str(key),
                "--json",
                code=3,
            )
        )
        assert failed["error"]["kind"] == "ReadOnly"
    for name in ("from-web", "from-both"):
        assert (tmp_path / name / "model.safetensors").read_bytes() == expected
