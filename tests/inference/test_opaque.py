"""Bodies that are passed on: what is taken out of a request, put into an answer and read of it."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skerry.inference.constraint import parse_header
from skerry.inference.errors import AnswerInvalid, RequestInvalid
from skerry.inference.opaque import Front, read_passed, told
from skerry.inference.passed import PassedCompletion, read_passed_completion


@pytest.mark.parametrize(
    ("starts", "ends"), [([], []), (["6"], []), (["5"], ["6"]), (["7"], ["7"]), (["x"], ["x"])]
)
def test_a_client_believes_no_answer_of_other_versions(starts: list[str], ends: list[str]) -> None:
    with pytest.raises(AnswerInvalid):
        read_passed_completion(b"{}", starts, ends, parse_header("5..6"))


SPAN = {"version": "5", "start": 0, "end": 2}


@pytest.mark.parametrize(
    ("said", "choices"),
    [
        ({"weight_versions": [SPAN]}, [[SPAN]]),
        ({"weight_versions": []}, [[]]),
        ({"choice_weight_versions": [[SPAN], []]}, [[SPAN], []]),
    ],
)
def test_a_client_reads_the_spans_of_each_choice(said: object, choices: object) -> None:
    answer = PassedCompletion(5, json.dumps(said).encode())
    assert [[span.to_json() for span in spans] for spans in answer.spans()] == choices


@pytest.mark.parametrize(
    "said",
    [
        [],
        {},
        {"weight_versions": [{**SPAN, "version": "6"}]},
        {"weight_versions": [{**SPAN, "start": 1}]},
        {"weight_versions": [{**SPAN, "end": 0}]},
        {"choice_weight_versions": 7},
        {"choice_weight_versions": [7]},
    ],
)
def test_a_client_believes_no_spans_that_break_their_promises(said: object) -> None:
    with pytest.raises(AnswerInvalid):
        PassedCompletion(5, json.dumps(said).encode()).spans()


BAD = [
    (b"[]", "no object"),
    (b'{"a": 1, "a": 2}', "given twice"),
    (b'{"kv_transfer_params": {"remote_host": "x"}}', "kv_transfer_params"),
    (b'{"sampling_params": {"extra_args": {"kv_transfer_params": {}}}}', "kv_transfer_params"),
    (b'{"vllm_xargs": {"ec_transfer_params": 1}}', "ec_transfer_params"),
    (b'{"use_beam_search": true}', "use_beam_search"),
    (b'{"temperature": 1e999}', "1e999"),
]


@pytest.mark.parametrize(("data", "why"), BAD)
def test_a_request_that_may_bring_state_of_another_version_is_refused(
    data: bytes, why: str
) -> None:
    with pytest.raises(RequestInvalid, match=why):
        read_passed(data)


@given(
    st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=4), max_size=3),
    st.lists(st.integers(0, 40), max_size=6),
    st.sampled_from(["", " ", "\r\n\t"]),
)
def test_versions_in_front_change_nothing_else_wherever_pieces_begin(
    value: dict[str, object], cuts: list[int], space: str
) -> None:
    data = (space + json.dumps(value, indent=1)).encode()
    ends = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    front = Front(told(7, []))
    made = b"".join(front.push(data[a:b]) for a, b in itertools.pairwise(ends)) + front.rest()
    assert made.endswith(data.lstrip()[1:])
    assert json.loads(made) == {**told(7, []), **value}


@pytest.mark.parametrize("data", [b"", b"[1]", b"null", b"  ", b"{"])
def test_what_is_no_object_is_passed_on_as_it_is(data: bytes) -> None:
    front = Front(told(7, []))
    assert front.push(data) + front.rest() == data
