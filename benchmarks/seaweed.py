"""SeaweedFS, a real S3 server: one process on one address, on ports that are free."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sysconfig
import time
from contextlib import ExitStack
from pathlib import Path
from random import SystemRandom
from urllib.parse import urlencode

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from skerry.benchmarks.credentials import ACCESS_KEY, SECRET_KEY
from skerry.benchmarks.processes import stop_process

_START_S = 60.0
_STARTS = 5  # with other ports, when somebody was faster
_POLL_S = 0.05
_GRPC = 10_000  # its gRPC ports are that much higher than the others
_SERVICES = ("s3", "master", "volume", "filer", "admin")


def weed() -> Path | None:
    """Return the server's program; there are wheels of it for some platforms."""
    beside = Path(sysconfig.get_path("scripts")) / "weed"
    found = str(beside) if beside.is_file() else shutil.which("weed")
    return None if found is None else Path(found)


class Seaweed:
    """A server over one directory; `kill` and `start` again leave what it had acknowledged."""

    def __init__(self, program: Path, root: Path, host: str = "127.0.0.1") -> None:
        self._program = program
        self._root = root
        self._host = host
        self._process: subprocess.Popen[bytes] | None = None
        self._ports: dict[str, int] = {}
        (root / "data").mkdir(parents=True)

    @property
    def endpoint(self) -> str:
        return f"http://{self._host}:{self._ports['s3']}"

    @property
    def address(self) -> tuple[str, int]:
        return self._host, self._ports["s3"]

    def start(self) -> None:
        """Start on free ports; again on those it had.  Returns when it answers."""
        for _ in range(_STARTS if not self._ports else 1):
            fresh = not self._ports
            if fresh:
                self._ports = _free_ports(self._host)
            self._process = self._spawn()
            if self._answers():
                return
            self.kill()
            if fresh:
                self._ports = {}
        raise RuntimeError(f"no S3 server after {_START_S:g} s; see {self._root / 'log'}")

    def kill(self) -> None:
        """Kill it as `kill -9` does."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def make_bucket(self, name: str) -> None:
        self.client().create_bucket(Bucket=name)

    def url(self, bucket: str, prefix: str = "", *, endpoint: str | None = None) -> str:
        """Return the address of a run in a bucket, perhaps by a road that leads here."""
        options = {"endpoint_url": endpoint or self.endpoint, "addressing_style": "path"}
        return f"s3://{bucket}/{prefix}?{urlencode(options)}"

    def client(self) -> boto3.client:
        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            config=Config(
                signature_version="s3v4",
                s3={"addressing_style": "path"},
                connect_timeout=2,
                read_timeout=10,
                retries={"total_max_attempts": 1},
            ),
        )

    def _spawn(self) -> subprocess.Popen[bytes]:
        ports = [f"-{name}.port={port}" for name, port in self._ports.items()]
        command = [
            str(self._program), "-logtostderr=true", "mini",
            f"-dir={self._root / 'data'}", f"-ip={self._host}", f"-ip.bind={self._host}", *ports,
            "-admin.ui=false", "-webdav=false", "-s3.port.iceberg=0", "-s3.port.lance=0",
            "-master.telemetry=false",
        ]  # fmt: skip
        # It leaves sockets in the directory for temporary files.
        (self._root / "tmp").mkdir(exist_ok=True)
        environment = os.environ | {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "TMPDIR": str(self._root / "tmp"),
        }
        with (self._root / "log").open("ab") as log:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment,
                cwd=self._root,
            )  # fmt: skip

    def _answers(self) -> bool:
        assert self._process is not None
        client = self.client()
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                client.list_buckets()
            except (BotoCoreError, ClientError):
                time.sleep(_POLL_S)
            else:
                return True
        return False

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            stop_process(self._process, 20, how)
            self._process = None


def _free_ports(host: str) -> dict[str, int]:
    """Return ports below the ephemeral ones that are free now, as are their gRPC siblings."""
    random = SystemRandom()
    while True:
        ports = random.sample(range(10_500, 20_500), len(_SERVICES))
        try:
            with ExitStack() as stack:
                for port in (*ports, *(port + _GRPC for port in ports)):
                    probe = stack.enter_context(socket.socket())
                    probe.bind((host, port))
        except OSError:
            continue
        return dict(zip(_SERVICES, ports, strict=True))
