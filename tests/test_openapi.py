"""The OpenAPI description is complete, valid, committed, and true of what the gateway answers."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from openapi_spec_validator import validate
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from proxy.engines.stub import StubEngine, silent
from proxy.openapi import FORMATS, NOT_OURS, describe, operations
from proxy.routes import ROUTES
from tests.support import MODEL, RunningGateway, connection, get, post, request_bytes, serving
from tests.test_docs import DOCS, _tables
from translators.contract import CONTRACTS, DOCUMENTED
from translators.openapi import EXAMPLES

CASES = int(os.environ.get("OPENAPI_CASES", "200"))
"""How many requests schemathesis makes up; `make test-openapi` asks for 2,000."""
CONFORMANCE = [
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
]
DOCUMENT = describe(DOCUMENTED, (MODEL,))
TEMPLATES = {"{model}": MODEL, "{seconds}": "5"}


def component(name: str, document: dict[str, Any] = DOCUMENT) -> jsonschema.Draft202012Validator:
    schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
    return jsonschema.Draft202012Validator(schema)


def path_of(template: str) -> str:
    for name, value in TEMPLATES.items():
        template = template.replace(name, value)
    return template


@pytest.mark.parametrize("contract", CONTRACTS.values(), ids=CONTRACTS.keys())
def test_it_is_valid_openapi(contract: Any) -> None:
    document = describe(contract)
    assert document["openapi"] == "3.1.0"
    validate(document)


def test_every_route_is_in_it_and_nothing_else() -> None:
    described = {
        (method.upper(), path) for path, methods in DOCUMENT["paths"].items() for method in methods
    }
    assert described == {(each.method, each.path) for each in operations(ROUTES)}
    assert len(described) == len([route for route in ROUTES if route.handler not in NOT_OURS])
    assert {route.handler for route in ROUTES} == {*FORMATS, *NOT_OURS}


def test_the_committed_copy_is_the_codes() -> None:
    committed = (DOCS / "openapi.json").read_text(encoding="utf-8")
    assert committed == _tables().openapi(), "run: python docs/tables.py"
    assert json.loads(committed) == describe(DOCUMENTED)


@pytest.mark.parametrize("contract", ["documented", "server"])
async def test_the_gateway_serves_the_description_of_its_own_contract(contract: Any) -> None:
    async with serving(contract=contract) as running:
        response = await get(running.port, "/openapi.json")
    assert response.headers["content-type"] == "application/json"
    assert response.json == describe(CONTRACTS[contract], (MODEL,))


async def test_before_the_engine_has_spoken_no_model_is_named() -> None:
    async with serving(started=False) as running:
        assert (await get(running.port, "/openapi.json")).json == describe(DOCUMENTED)


def test_the_contracts_differ_in_their_ranges() -> None:
    def seed(name: Any) -> dict[str, Any]:
        parameters = describe(CONTRACTS[name])["components"]["schemas"]["TritonParameters"]
        found: dict[str, Any] = parameters["properties"]["seed"]
        return found

    assert (seed("documented")["exclusiveMinimum"], seed("documented")["maximum"]) == (0, 2**64 - 1)
    assert (seed("server")["minimum"], seed("server")["maximum"]) == (0, 2**63 - 1)


def test_what_is_to_end_is_deprecated() -> None:
    deprecated = {
        path
        for path, methods in DOCUMENT["paths"].items()
        for m in methods.values()
        if m["deprecated"]
    }
    assert "/v2/models/{model}/generate_stream" in deprecated
    assert not {"/v1/models", "/openapi.json", "/metrics"} & deprecated


def test_keys_guard_what_they_guard() -> None:
    for operation in operations(ROUTES):
        described = DOCUMENT["paths"][operation.path][operation.method.lower()]
        assert ("security" in described) == operation.needs_key == ("401" in described["responses"])


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_fit_their_schemas(name: str) -> None:
    component(name).validate(EXAMPLES[name])


POSTS = [each for each in operations(ROUTES) if each.request and each.name != "stop"]


@pytest.mark.parametrize("operation", POSTS, ids=lambda operation: operation.path)
async def test_an_example_works_as_it_stands_and_its_answer_is_as_described(
    operation: Any,
) -> None:
    async with serving() as running:
        example = EXAMPLES[operation.request]
        if operation.request == "StopRequest":
            running.engine.script = silent
            async with connection(running.port) as client:
                client.send(request_bytes(EXAMPLES["TritonRequest"]))
                await client.head()
                response = await post(running.port, example, path_of(operation.path))
        else:
            response = await post(running.port, example, path_of(operation.path))
    assert response.status == 200, response.body
    kinds = {answer.media_type: answer.schema for answer in operation.answers}
    kind = response.headers["content-type"]
    documents = response.frames if kind == "text/event-stream" else [response.json]
    for document in documents:
        component(kinds[kind]).validate(document)


READS = [e for e in operations(ROUTES) if e.method == "GET" and e.answers[0].schema is not None]


@pytest.mark.parametrize("operation", READS, ids=lambda operation: operation.path)
async def test_what_is_read_is_as_described(operation: Any) -> None:
    async with serving() as running:
        response = await get(running.port, path_of(operation.path))
    component(operation.answers[0].schema).validate(response.json)


def test_a_schema_of_answers_refuses_what_no_translator_makes() -> None:
    frame = {"id": "a", "model_name": "m", "model_version": None, "text_output": "x"}
    component("TritonFrame").validate(frame)
    for wrong in ({**frame, "more": 1}, {**frame, "text_output": 1}, {"id": "a"}):
        with pytest.raises(jsonschema.ValidationError):
            component("TritonFrame").validate(wrong)


# schemathesis ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def running() -> Iterator[RunningGateway]:
    """A gateway in a thread of its own: schemathesis waits for each answer."""
    started, stop = threading.Event(), asyncio.Event()
    found: list[Any] = []

    async def serve() -> None:
        async with serving(StubEngine()) as gateway:
            found.extend((gateway, asyncio.get_running_loop()))
            started.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    assert started.wait(10)
    gateway, loop = found
    yield gateway
    loop.call_soon_threadsafe(stop.set)
    thread.join(10)


SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)
FUZZED = [each.ok() for each in SCHEMA.get_all_operations()]
VARIED = [each for each in FUZZED if each.body or "seconds" in each.path]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("operation", "mode"),
    [
        (each, mode)
        for each in FUZZED
        for mode in GenerationMode
        # There is no wrong way to ask for what takes nothing.
        if mode is GenerationMode.POSITIVE or each.body or each.path_parameters
    ],
    ids=lambda value: getattr(value, "label", None) or str(value.value),
)
def test_no_request_makes_the_gateway_fail(
    operation: Any, mode: GenerationMode, running: RunningGateway
) -> None:
    count = -(-CASES // (2 * len(VARIED))) if operation in VARIED else 1
    session = requests.Session()

    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        base = f"http://127.0.0.1:{running.port}"
        response = case.call(base_url=base, session=session, timeout=30)
        if not _is_unknown_id(operation, response):
            case.validate_response(response, checks=[not_a_server_error, *CONFORMANCE])

    ask()


def _is_unknown_id(operation: Any, response: Any) -> bool:
    """The one 500 that the contract asks for: nothing to stop under this id (§7)."""
    if not operation.path.endswith("/stopInfer") or response.status_code != 500:
        return False
    assert response.json()["error"] == "there is no live request with this id"
    return True


def test_the_gateway_is_as_well_as_before(running: RunningGateway) -> None:
    url = f"http://127.0.0.1:{running.port}/v2/models/{MODEL}/generate"
    answer = requests.post(url, json={"text_input": "still here"}, timeout=10)
    assert answer.status_code == 200
    assert not running.engine.live
