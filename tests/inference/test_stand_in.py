"""The stand-in keeps the port's contract, so that what is tested with it holds for engines."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.inference.engine_contract import NEW, OLD, EngineContract, EngineWorld
from tests.inference.stand_in import Checkpoints, StandInEngine


class TestStandInEngine(EngineContract):
    @pytest.fixture
    def world(self, tmp_path: Path) -> EngineWorld:
        checkpoints = Checkpoints(tmp_path / "checkpoints")
        return EngineWorld(make=StandInEngine, old=checkpoints.path(OLD), new=checkpoints.path(NEW))
