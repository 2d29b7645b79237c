"""One real vLLM server with the plug-in, as the documents say to start it."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from skerry.inference.engines import VllmConfig, VllmEngine
from skerry.inference.engines.vllm_config import PausePolicy
from tests.inference.vllm.installed import environment

_START_LIMIT_S = 600.0

# Random weights say nothing but white space where they may, and never end.
TOOL_PARSER = "hermes"
GRAMMAR = {"backend": "xgrammar", "disable_any_whitespace": True}


@dataclass(frozen=True, slots=True)
class Server:
    url: str
    exchange: Path
    log: Path

    def engine(self, policy: PausePolicy = "keep", lease_s: float = 120.0) -> VllmEngine:
        return VllmEngine(
            VllmConfig(url=self.url, directory=self.exchange, policy=policy, lease_s=lease_s)
        )


@contextmanager
def running(directory: Path, root: Path, *more: str, **variables: str) -> Iterator[Server]:
    """Serve `directory` until the body ends, with more arguments and environment variables."""
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port = chosen.getsockname()[1]
    server = Server(f"http://127.0.0.1:{port}", root / "exchange", root / "server.log")
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server",
        "--model", str(directory), "--served-model-name", "policy",
        "--host", "127.0.0.1", "--port", str(port),
        "--dtype", "bfloat16", "--enforce-eager", "--block-size", "32",
        "--max-model-len", "8192", "--max-num-seqs", "64",
        "--kv-cache-memory-bytes", str(256 << 20),
        "--logprobs-mode", "processed_logprobs",
        "--enable-scale-out", "--enable-auto-tool-choice", "--tool-call-parser", TOOL_PARSER,
        "--structured-outputs-config", json.dumps(GRAMMAR),
        "--weight-transfer-config", '{"backend": "skerry"}',
        "--worker-extension-cls", "skerry.inference.vllm.worker.SkerryWorker",
        *more,
    ]  # fmt: skip
    with server.log.open("wb") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment(SKERRY_ENGINE_DIR=str(server.exchange), **variables),
        )
        try:
            _wait(process, server)
            yield server
        finally:
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait(process: subprocess.Popen[bytes], server: Server) -> None:
    """Return when the server answers; every try waits for its end, which would be its failure."""
    deadline = time.monotonic() + _START_LIMIT_S
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{server.url}/health", timeout=10) as answer:
                if answer.status == 200:
                    return
        except OSError:
            pass
        try:
            process.wait(0.5)
        except subprocess.TimeoutExpired:
            continue
        break
    said = server.log.read_text(errors="replace")[-8000:]
    raise RuntimeError(f"vLLM did not start (exit code {process.poll()}):\n{said}")
