"""The one family of models behind positions: how far is it to the next changed word of a class?

A **rate code** r says that each word of a class stays unchanged with probability exp(-h), where the
hazard is h = 8 * 2^(-r/4): quarter octaves, from "nearly all change" (0) to about one in ten
million (MAX_RATE).  Gaps are then geometric.  A gap d is cut into a symbol u = d >> g and g raw
bits, with g chosen so that one symbol step has a hazard between 2^-3.75 and 2^-3 where g > 0; the
symbol's distribution depends on the **table** t = r - 4g alone.  There are TABLES tables, each of
SYMBOLS symbols and an escape.  They are defined in integers, so that every implementation agrees on
every frequency:

    S(t, 0) = 2^32,  S(t, n+1) = S(t, n) * STAY[t] >> 32             survival of n symbol steps
    C(t, n) = n + ((TOTAL - SYMBOLS - 1) * (2^32 - S(t, n)) >> 32)   cumulative frequency, n <= 31
    C(t, 32) = TOTAL                                                 symbol 31 is the escape
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

TOTAL_BITS = 12
TOTAL = 1 << TOTAL_BITS
SYMBOLS = 31
TABLES = 28
FIRST_SHIFTED = 24  # rate codes from 28 on have raw bits: g = (r - 24) >> 2
MAX_RATE = 107  # g = 20: one symbol step is as long as the longest chunk
NEVER = 255  # the code of a class without changes: costs nothing, allows nothing

# round(2^32 * exp(-8 * 2^(-t/4))): the probability that one symbol step passes without a change.
STAY = (
    1440801, 5145013, 15004422, 36905875, 78665070, 148652826, 253857248,
    398132550, 581260615, 799036310, 1044178424, 1307656790, 1580030169, 1852521207,
    2117713904, 2369882518, 2605029347, 2820730047, 3015876649, 3190386796, 3344923893,
    3480652712, 3599040369, 3701703250, 3790295335, 3866431115, 3931635878, 3987316692,
)  # fmt: skip


def shift_of(rate: Ints) -> Ints:
    """Return g, the number of raw bits of a gap, for rate codes of any shape."""
    shift: Ints = np.maximum(0, (rate - FIRST_SHIFTED) >> 2)
    return shift


def _cumulative() -> Ints:
    table = np.empty((TABLES, SYMBOLS + 2), np.int64)
    for t, stay in enumerate(STAY):
        survival = 1 << 32
        for n in range(SYMBOLS + 1):
            table[t, n] = n + ((TOTAL - SYMBOLS - 1) * ((1 << 32) - survival) >> 32)
            survival = survival * stay >> 32
        table[t, SYMBOLS + 1] = TOTAL
    return table


def _lookup(cumulative: Ints) -> Ints:
    table = np.empty((TABLES, TOTAL), np.int64)
    for t in range(TABLES):
        table[t] = np.repeat(np.arange(SYMBOLS + 1), np.diff(cumulative[t]))
    return table


CUMULATIVE = _cumulative()  # shape [TABLES, SYMBOLS + 2]
LOOKUP = _lookup(CUMULATIVE)  # shape [TABLES, TOTAL]: the symbol that a slot belongs to

_HAZARD = 8 * 2.0 ** (-np.arange(MAX_RATE + 1) / 4)  # per word, by rate code
BITS_CHANGED = -np.log2(-np.expm1(-_HAZARD))  # ideal cost in bits of a changed word
BITS_UNCHANGED = _HAZARD / np.log(2)  # and of an unchanged one


def rate_of(changed: npt.ArrayLike, words: npt.ArrayLike) -> Ints:
    """Return the rate codes that fit `changed` of `words` best; NEVER where nothing changed."""
    k, n = np.asarray(changed, np.float64), np.asarray(words, np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        hazard = -np.log1p(-np.minimum(k / n, 1 - 2**-12))
        rate = np.rint(4 * (3 - np.log2(hazard)))
    return np.where(k > 0, np.clip(np.nan_to_num(rate), 0, MAX_RATE), NEVER).astype(np.int64)
