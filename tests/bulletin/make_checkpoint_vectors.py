"""Writes the golden checkpoint: `python -m tests.bulletin.make_checkpoint_vectors DIRECTORY`.

It sums up the golden signed log of `make_vectors`: every kind of record, a rotation on the way.
Frozen once written, so this refuses to overwrite one.
"""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path

from skerry.bulletin import checkpoint, summary
from tests.bulletin.log_builder import OTHER_SIGNER, SIGNER
from tests.bulletin.make_vectors import signed_log

NAME = "signed-log-to-slot-9.json"


def vector() -> dict[str, object]:
    """Return the checkpoint as it is stored, and its two parts as they can be read."""
    log = signed_log()
    stored = checkpoint.make(log.state, OTHER_SIGNER)
    header, _, _ = stored.partition(b"\n")
    return {
        "seq": log.state.seq,
        "first_key": SIGNER.public_key.hex,
        "stored_base64": base64.b64encode(stored).decode(),
        "header": header.decode(),
        "summary": summary.summarize(log.state).decode(),
    }


def main() -> None:
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / NAME).open("x") as file:  # x: never overwrite
        file.write(json.dumps(vector(), indent=2) + "\n")


if __name__ == "__main__":
    main()
