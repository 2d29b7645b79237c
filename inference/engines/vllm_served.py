"""What a vLLM server has last said of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Served:
    """`install` names how the weights of `version` came there; nothing else has that name."""

    version: int | None = None
    install: str = ""
    reads_mirror: bool = True  # until the server has said that it does not
    _instance: str | None = None
    _serial: int = 0

    def note(self, answer: Mapping[str, Any]) -> bool:
        """Take over what an answer says, if it does; return whether another process says it.

        Answers may overtake each other: of one process, an earlier one is passed over.
        """
        if "instance" not in answer:
            return False
        instance, serial = str(answer["instance"]), int(answer.get("serial") or 0)
        if instance == self._instance and serial < self._serial:
            return False
        restarted = self._instance not in (None, instance)
        self._instance, self._serial, version = instance, serial, answer.get("version")
        self.version = version if isinstance(version, int) else None
        self.install = str(answer.get("install") or "")
        self.reads_mirror = answer.get("reads_mirror") is not False
        return restarted
