"""The named step boundaries of an install; tests kill the process at each of them.

The order of a patch install is an invariant (the numbers are those of `install` and `agent`):

1. `objects-spooled`    every object is in the spool and has its promised size and digest
2. `decoded`            every result leaf digest and the version digest were checked on copies
3. `journal-durable`    the install record, with old and new words, is complete on disk
4. `engines-switched`   engines that need no mirror were switched from the record, or are slow
5. `words-written`      words, header bytes and side files are in place and durable
6. `leaves-checked`     every touched leaf was hashed again from the mirror and agrees
7. `marker-moved`       the mirror is the new version
8. `engines-installed`  each engine was switched through the gate, or has its error recorded
9. `acknowledged`       the record is gone, the spool is empty

No mirror byte is touched before 3, so a crash up to 3 leaves the old version; from 3 on, opening
the mirror finishes 5 to 7: that is why engines may go first.  A full version goes
`objects-spooled`, `assembled` (verified and durable beside the mirror), `swap-intended`,
`old-moved`, `new-moved`, `marker-moved`, then 8 and 9; before `swap-intended` a crash leaves the
old version, from then on opening finishes the swap.

A repair of damaged bytes goes `repair-fetched` (the right bytes, by digest, are in memory),
`repair-recorded` (in a durable record), `repair-written`, `repair-checked` (hashed again from the
mirror), `repair-acknowledged` (marker written anew, the record is gone); from `repair-recorded` on,
opening finishes it.
"""

from __future__ import annotations

from collections.abc import Callable

Hook = Callable[[str], None]

PATCH_STEPS = (
    "objects-spooled",
    "decoded",
    "journal-durable",
    "engines-switched",
    "words-written",
    "leaves-checked",
    "marker-moved",
    "engines-installed",
    "acknowledged",
)
SWAP_STEPS = (
    "objects-spooled",
    "assembled",
    "swap-intended",
    "old-moved",
    "new-moved",
    "marker-moved",
    "engines-installed",
    "acknowledged",
)
REPAIR_STEPS = (
    "repair-fetched",
    "repair-recorded",
    "repair-written",
    "repair-checked",
    "repair-acknowledged",
)
# Inside steps, once per tensor or file: may be called any number of times.
TENSOR_DECODED = "tensor-decoded"
TENSOR_WRITTEN = "tensor-written"
FILE_FETCHED = "file-fetched"
FULL_VERIFIED = "full-verified"  # a downloaded full version, before patches are applied to it


def no_hook(step: str) -> None:
    """Do nothing at a step's boundary."""
