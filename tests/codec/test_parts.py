"""The coder's parts: each keeps its law on its own."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skerry.codec.bits import pack_fields, unpack_fields
from skerry.codec.dtypes import DTYPES
from skerry.codec.errors import FormatError
from skerry.codec.magnitudes import MagnitudeTable, fit_tables, quantise
from skerry.codec.rans import Decoder, encode_streams
from skerry.codec.rates import CUMULATIVE, LOOKUP, NEVER, STAY, SYMBOLS, TABLES, TOTAL, rate_of
from skerry.codec.scan import CLASSES
from skerry.codec.steps import (
    MAX_PRECISION,
    from_symbols,
    steps,
    take_steps,
    to_symbols,
    widths_of,
)
from skerry.codec.varint import VarintReader, unzigzag, write_varints, zigzag


def test_the_listed_constants_are_what_their_formula_says() -> None:
    assert [round(2**32 * math.exp(-8 * 2 ** (-t / 4))) for t in range(TABLES)] == list(STAY)


def test_every_gap_symbol_has_a_frequency_and_all_sum_to_the_total() -> None:
    assert (np.diff(CUMULATIVE) > 0).all()
    assert (CUMULATIVE[:, 0] == 0).all()
    assert (CUMULATIVE[:, -1] == TOTAL).all()
    for t in range(TABLES):
        for symbol in range(SYMBOLS + 1):
            span = LOOKUP[t, CUMULATIVE[t, symbol] : CUMULATIVE[t, symbol + 1]]
            assert (span == symbol).all()


@given(st.integers(1, 10**6), st.integers(0, 10**6))
def test_a_rate_code_is_within_an_eighth_octave_of_the_rate(words: int, changed: int) -> None:
    changed = min(changed, words)
    code = int(rate_of(changed, words))
    if changed == 0:
        assert code == NEVER
        return
    hazard = -math.log1p(-min(changed / words, 1 - 2**-12))
    assert code in (0, 107) or abs(math.log2(hazard) - (3 - code / 4)) <= 0.1251


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, TABLES * 31 - 1), max_size=60), st.integers(0, 65535))
    )
)
def test_entropy_coding_returns_symbols_and_seed(
    streams: list[tuple[list[int], int]],
) -> None:
    tables = [np.array(s, np.int64) // 31 for s, _ in streams]
    symbols = [np.array(s, np.int64) % 31 for s, _ in streams]
    starts = [CUMULATIVE[t, s] for t, s in zip(tables, symbols, strict=True)]
    frequencies = [
        CUMULATIVE[t, s + 1] - CUMULATIVE[t, s] for t, s in zip(tables, symbols, strict=True)
    ]
    coded = encode_streams(starts, frequencies, [seed for _, seed in streams])
    sizes = np.array([len(c) for c in coded], np.int64)
    data = np.frombuffer(b"".join(coded) + bytes(8), np.uint8)
    offsets = np.cumsum(sizes) - sizes
    decoder = Decoder(data, offsets)
    for lane, symbol in enumerate(symbols):
        only = np.array([lane])
        for step in range(symbol.size):
            slots = decoder.slots(only)
            start, frequency = starts[lane][step], frequencies[lane][step]
            assert start <= slots[0] < start + frequency
            decoder.advance(only, slots, np.array([start]), np.array([frequency]))
    assert (decoder.next == offsets + sizes).all()
    assert [int(s) - 65536 for s in decoder.state] == [seed for _, seed in streams]


@given(st.lists(st.tuples(st.integers(0, 64), st.integers(0, 2**64 - 1)), max_size=40))
def test_bit_fields_come_back(fields: list[tuple[int, int]]) -> None:
    widths = np.array([w for w, _ in fields], np.int64)
    values = np.array([v & ((1 << w) - 1) for w, v in fields], np.uint64)
    assert np.array_equal(unpack_fields(pack_fields(values, widths), widths), values)


@pytest.mark.parametrize("dtype", ["BF16", "F8_E4M3", "F64", "I32", "U8", "BOOL", "C64"])
@given(data=st.data())
def test_a_step_leads_from_old_to_new(dtype: str, data: st.DataObject) -> None:
    kind = DTYPES[dtype]
    words = st.lists(st.integers(0, 2 ** (8 * kind.word) - 1), min_size=1, max_size=20)
    old = np.array(data.draw(words), kind.numpy)
    new = np.array(data.draw(words)[: old.size], kind.numpy)
    old = old[: new.size]
    old, new = old[old != new], new[old != new]
    magnitude, down = steps(old, new, kind)
    precision = data.draw(st.integers(0, MAX_PRECISION))
    symbol, raw, width = to_symbols(magnitude, precision)
    assert np.array_equal(widths_of(symbol, precision), width)
    assert np.array_equal(from_symbols(symbol, raw, precision), magnitude)
    assert np.array_equal(take_steps(old, magnitude, down, kind), new)


def test_one_ulp_is_one_step_across_zero_and_exponents() -> None:
    kind = DTYPES["BF16"]
    old = np.array([0x3F80, 0x0000, 0x8000, 0x3F7F, 0x8001], kind.numpy)
    new = np.array([0x3F81, 0x8000, 0x0000, 0x3F80, 0x8000], kind.numpy)
    magnitude, down = steps(old, new, kind)
    assert magnitude.tolist() == [1] * 5
    assert down.tolist() == [False, True, False, False, False]


@pytest.mark.parametrize("magnitude", [0, 0x8001, 2**63])
def test_a_step_that_no_pair_has_is_refused(magnitude: int) -> None:
    kind = DTYPES["BF16"]
    with pytest.raises(FormatError, match="out of range"):
        take_steps(
            np.zeros(1, kind.numpy),
            np.array([magnitude], np.uint64),
            np.array([True]),
            kind,
        )


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=TOTAL // 4))
def test_quantised_frequencies_keep_every_symbol(counts: list[int]) -> None:
    array = np.array([*counts, 1], np.int64)
    frequencies = quantise(array)
    assert ((frequencies > 0) == (array > 0)).all()
    assert MagnitudeTable(precision=0, frequencies=frequencies).symbol_of.size == TOTAL


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 255), st.integers(1, 2**63)), min_size=1, max_size=300))
def test_every_magnitude_has_a_symbol_in_its_class_s_table(seen: list[tuple[int, int]]) -> None:
    classes = np.array([c for c, _ in seen], np.int64)
    magnitudes = np.array([m for _, m in seen], np.uint64)
    longer = magnitudes > 1
    changed = np.bincount(classes, minlength=CLASSES)
    table_of, tables = fit_tables(magnitudes[longer], classes[longer], changed)
    for c, m in seen:
        if table_of[c] == 0:
            assert m == 1
            continue
        table = tables[table_of[c] - 1]
        symbol, _, _ = to_symbols(np.array([m], np.uint64), table.precision)
        assert table.frequencies[symbol[0]] > 0


@given(st.lists(st.integers(0, 2**63 - 1)))
def test_varints_come_back(values: list[int]) -> None:
    out = bytearray()
    write_varints(out, values)
    reader = VarintReader(bytes(out))
    assert reader.varints(len(values), 2**63 - 1) == values
    reader.finish()


@given(st.integers(-(2**40), 2**40))
def test_zigzag_comes_back(value: int) -> None:
    assert unzigzag(zigzag(value)) == value


@pytest.mark.parametrize(
    ("data", "rule"),
    [
        (b"", "end in the middle"),
        (b"\x80", "end in the middle"),
        (b"\x80\x00", "shortest form"),
        (b"\x81\x80\x00", "shortest form"),
        (b"\xff" * 10, "longer than"),
        (b"\x7f", "at most 100"),
    ],
)
def test_integers_of_any_other_form_are_refused(data: bytes, rule: str) -> None:
    with pytest.raises(FormatError, match=rule):
        VarintReader(data).varint(100)
