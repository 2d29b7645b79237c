"""Writes the golden records: `python -m tests.bulletin.make_vectors DIRECTORY`.

Records are frozen once written, so this refuses to overwrite one.  A new form of record gets a new
directory beside the old one.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from skerry.bulletin.records import Retire, Rotate
from tests.bulletin.log_builder import OTHER_SIGNER, SIGNER, START_MS, LogBuilder


def signed_log() -> LogBuilder:
    """Every kind of record, in a log that a reader accepts from its start."""
    log = LogBuilder()
    log.append(log.fence())
    log.append(log.full(parent=None))
    log.append(log.patch(parent=0, packs=2))
    log.append(log.patch(parent=1, with_full=True))
    log.append(log.patch(parent=2, packs=0))
    log.append(log.skip(0, 2))
    log.append(Retire(versions=(1,), keys=(log.state.commits[1].packs[0].key,), grace_s=3600))
    log.append(Rotate(key=OTHER_SIGNER.public_key))
    log.signer = OTHER_SIGNER
    log.append(log.fence(), writer="writer-2")
    log.append(log.patch(parent=2), writer="writer-2")
    return log


def unsigned_log() -> LogBuilder:
    return LogBuilder.with_versions(2, signer=None)


NAMES = (
    "fence", "commit-full", "commit-patch", "commit-patch-and-full", "commit-unchanged", "skip",
    "retire", "rotate", "fence-after-rotation", "commit-rollback",
)  # fmt: skip


def vectors() -> dict[str, bytes]:
    """Return the content of every vector by its file name."""
    files = {}
    for seq, (name, data) in enumerate(zip(NAMES, signed_log().slots, strict=True)):
        files[f"{seq:02d}-{name}.json"] = data
    for seq, data in enumerate(unsigned_log().slots):
        files[f"unsigned-{seq:02d}.json"] = data
    about = {
        "first_key": SIGNER.public_key.hex,
        "second_key": OTHER_SIGNER.public_key.hex,
        "first_time_ms": START_MS,
        "head_signed": signed_log().state.head,
        "head_unsigned": unsigned_log().state.head,
    }
    files["about.json"] = json.dumps(about, indent=2).encode() + b"\n"
    return files


def main() -> None:
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    for name, data in vectors().items():
        with (directory / name).open("xb") as file:  # x: never overwrite
            file.write(data)


if __name__ == "__main__":
    main()
