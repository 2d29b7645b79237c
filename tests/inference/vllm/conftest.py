"""One vLLM server for all tests of this directory that want one: starting it takes the longest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.inference.engine_contract import NEW, OLD
from tests.inference.vllm.checkpoints import make_tensors, nudged, speaking, write_model
from tests.inference.vllm.server import Server, running

FIRST, INSTALLS = 100, 10


@pytest.fixture(scope="session")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where OLD and NEW are, and from FIRST on versions whose tokens say their name."""
    root = tmp_path_factory.mktemp("vllm")
    tensors = make_tensors("dense")
    write_model(root / str(OLD), "dense", tensors)
    write_model(root / str(NEW), "dense", nudged(tensors, 1))
    for version in range(FIRST, FIRST + INSTALLS + 1):
        write_model(root / str(version), "dense", speaking(version))
    return root


@pytest.fixture(scope="session")
def server(places: Path) -> Iterator[Server]:
    with running(places / str(OLD), places) as server:
        yield server
