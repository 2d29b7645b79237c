"""Patch encodings that others use, on the same bytes as ours.

Each is written from its public description, as lossless and as framed as its users have it: one
zstd frame per tensor or stream, positions and values both counted, no metadata.  `decode` exists so
that a test can show that nothing was left out.
"""

from __future__ import annotations

from skerry.benchmarks.dense import xor
from skerry.benchmarks.rival import Rival
from skerry.benchmarks.sparse import INT32, LEB128, ROW_COLUMN, U16_GAPS
from skerry.benchmarks.whole_file import PATCH_FROM, PATCH_FROM_19, XDELTA3, ZIPNN

__all__ = ["EVERY_RIVAL", "RIVALS", "Rival"]

_XOR_1 = xor(1, used_by="slime, miles, Stitch, SkyRL, ModelExpress")

RIVALS = (INT32, _XOR_1, U16_GAPS)  # cheap enough for every version of a demo

EVERY_RIVAL = (
    INT32,
    LEB128,
    ROW_COLUMN,
    U16_GAPS,
    _XOR_1,
    xor(3, used_by="the same, with zstd's own default"),
    xor(19, used_by="the same, where size counts more than time", slow=True),
    XDELTA3,
    PATCH_FROM,
    PATCH_FROM_19,
    ZIPNN,
)
