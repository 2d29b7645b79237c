"""The API keeps its own description: whatever is asked, no 5xx and no answer beside the schema."""

from __future__ import annotations

import json
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.schemas import BaseSchema
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from skerry.bulletin.inspection.service.examples import EXAMPLES, STREAMS
from tests.bulletin.inspection.service.serving import Served

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
]


PATHS = (
    "/api/v1/catch-up",
    "/api/v1/difference",
    "/api/v1/difference/tensors",
    "/api/v1/forecast",
    "/api/v1/heat",
    "/api/v1/islands",
    "/api/v1/islands/{island}",
    "/api/v1/lineage",
    "/api/v1/manifests/{digest}",
    "/api/v1/records",
    "/api/v1/run",
    "/api/v1/runs",
    "/api/v1/storage",
    "/api/v1/tensor",
    "/api/v1/timeline",
    "/api/v1/versions",
    "/api/v1/versions/{version}",
    "/api/v1/versions/{version}/layers",
    "/api/v1/versions/{version}/sizes",
    "/api/v1/versions/{version}/tensors",
    "/api/v1/versions/{version}/verification",
    "/health",
    "/session",
)
WITHOUT_PARAMETERS = ("/api/v1/run", "/api/v1/runs", "/health")
ENDLESS = "/api/v1/events"  # does not end while a client listens: test_events has it


@pytest.fixture(scope="session")
def description(served: Served) -> BaseSchema:
    # A body that is too large is refused, too, before anybody looks at what is in it.
    refusals = {"negative_data_rejection": {"expected-statuses": [400, 401, 404, 413, 422]}}
    config = schemathesis.Config.from_dict({"checks": refusals})
    return schemathesis.openapi.from_url(f"{served.url}/openapi.json", config=config)


def test_every_path_of_the_description_is_asked(description: BaseSchema) -> None:
    assert set(description) == {*PATHS, ENDLESS}


@pytest.mark.parametrize(
    ("path", "mode"),
    [(p, m) for p in PATHS for m in GenerationMode if m.is_positive or p not in WITHOUT_PARAMETERS],
)
def test_whatever_is_asked_is_answered_as_described(
    description: BaseSchema, path: str, mode: GenerationMode
) -> None:
    [operation] = description[path].values()

    @given(operation.as_strategy(generation_mode=mode))
    @settings(max_examples=25, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
    def ask(case: Case[Any]) -> None:
        case.call_and_validate(checks=CHECKS, timeout=60)

    ask()


def test_every_island_is_answered_as_described(description: BaseSchema, served: Served) -> None:
    operation = description["/api/v1/islands/{island}"]["GET"]
    islands = served.get("islands").json["islands"]
    assert any(island["version"] is None for island in islands)
    for island in islands:
        case = operation.Case(path_parameters={"island": island["island"]})
        assert case.call_and_validate(checks=CHECKS[:-1], timeout=60).status_code == 200


def test_every_answer_of_the_description_has_an_example(served: Served) -> None:
    document = served.get("/openapi.json").json
    for path, methods in document["paths"].items():
        for kind, content in methods.get("get", {}).get("responses", {}).items():
            if kind == "200":
                assert all("example" in one for one in content["content"].values()), path


@pytest.mark.parametrize("path", sorted(STREAMS))
def test_examples_of_streams_have_the_fields_of_real_ones(served: Served, path: str) -> None:
    kind, example = STREAMS[path]
    query = "?seconds=1" if path == "/events" else ""
    answer = served.get(path[1:].format(version=40) + query)
    assert answer.headers["content-type"].startswith(kind)
    real, shown = (lines_of(text) for text in (answer.body.decode(), example))
    for names in shown:
        assert names in real


def lines_of(text: str) -> list[tuple[str, ...]]:
    """Return the fields of each line of a stream that is JSON."""
    data = [line.removeprefix("data: ") for line in text.splitlines()]
    return [tuple(json.loads(line)) for line in data if line.startswith("{")]


@pytest.mark.parametrize("path", sorted(EXAMPLES))
def test_examples_have_the_fields_of_real_answers(served: Served, path: str) -> None:
    queries = {
        "/catch-up": "?have=1", "/difference": "?old=0&new=1", "/heat": "?last=40&columns=2",
        "/difference/tensors": "?old=39&new=40", "/tensor": "?last=40&name=model.norm.weight",
    }  # fmt: skip
    manifest = served.get("versions/40").json["manifest"]
    place = path[1:].format(version=40, island="eu-000", digest=manifest)
    answer = served.get(place + queries.get(path, "")).json
    document = served.get("/openapi.json").json
    shown = document["paths"][f"/api/v1{path}"]["get"]["responses"]["200"]
    assert shown["content"]["application/json"]["example"] == EXAMPLES[path]
    assert_alike(EXAMPLES[path], answer)


def assert_alike(example: object, answer: object) -> None:
    """Fields are the same wherever both have an object, first items of lists included."""
    if isinstance(example, dict) and isinstance(answer, dict) and "cpu" not in example:
        assert example.keys() == answer.keys()
        for name in example:
            assert_alike(example[name], answer[name])
    if isinstance(example, list) and isinstance(answer, list) and example and answer:
        assert_alike(example[0], answer[0])
