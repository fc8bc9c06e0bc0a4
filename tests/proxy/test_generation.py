"""The checks and their order (contract §1), ids, limits and priorities, as the engine sees them."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from typing import Any

import pytest

from proxy.engines.stub import STUB_INFO, StubEngine
from proxy.gateway import State
from tests.proxy.test_app import assert_error
from tests.support import (
    MODEL,
    STREAM_PATH,
    connection,
    eventually,
    exchange,
    generate_body,
    post,
    request_bytes,
    serving,
)
from translators.body import parse_object
from translators.contract import Contract

pytestmark = pytest.mark.usefixtures("workers")

OTHER_MODEL = "/v2/models/other/generate_stream"

# Each fault with the status and a word of its error, in the order of contract §1. A request with
# all faults from one on must be told of the first.
FAULTS: list[tuple[str, dict[str, Any]]] = [
    ('"id"', {"id": "no id!"}),
    ('"text_input"', {"text_input": 7}),
    ('"temperature"', {"temperature": -1}),
    ('"top_k"', {"top_k": -1}),
    ('"top_p"', {"top_p": 2}),
    ('"typical_p"', {"typical_p": 2}),
    ('"do_sample"', {"do_sample": 1}),
    ('"seed"', {"seed": -1}),
    ('"repetition_penalty"', {"repetition_penalty": 0}),
    ('"watermark"', {"watermark": 1}),
    ('"priority"', {"priority": 6}),
    ('"max_new_tokens"', {"max_new_tokens": 0}),
    ('"details"', {"details": 1}),
    ('"batch_size"', {"batch_size": 0}),
    ('"timeout"', {"timeout": 0}),
    ('"firstTokenCost"', {"firstTokenCost": -1}),
    ('"decodeTime"', {"decodeTime": [-1]}),
]


def faulty(first: int) -> dict[str, Any]:
    """A body with every fault from number `first` on."""
    body: dict[str, Any] = {"text_input": "one", "parameters": {}}
    for _, fault in FAULTS[first:]:
        for key, value in fault.items():
            target = body if key in ("id", "text_input") else body["parameters"]
            target[key] = value
    return body


@pytest.mark.parametrize("first", range(len(FAULTS)), ids=[word for word, _ in FAULTS])
async def test_the_first_failure_wins(first: int) -> None:
    async with serving() as running:
        error = assert_error(await post(running.port, faulty(first)), 422, "Input Validation Error")
        assert FAULTS[first][0] in error
        assert not running.engine.submitted
        await running.settled(refused=1)


@pytest.mark.alone
async def test_the_order_around_the_body() -> None:
    """model → encoding and size → JSON → shutting down → id."""
    gzip = ("Content-Encoding: gzip",)
    async with serving(body_limit=1024) as running:
        running.gateway.enter(State.DRAINING)

        async def status(body: Any, path: str | None = None, headers: tuple[str, ...] = ()) -> int:
            raw = request_bytes(body, *([path] if path else []), headers=headers)
            return (await exchange(running.port, raw)).status

        assert await status(b"{" * 2000, OTHER_MODEL, gzip) == 404
        assert await status(b"{" * 2000, headers=gzip) == 415
        assert await status(b"{" * 2000) == 413
        assert await status(b"{") == 422
        assert await status(faulty(0)) == 503
        running.gateway.enter(State.READY)
        assert await status(faulty(0)) == 422


async def test_the_prompt_is_counted_before_the_parameters_are_checked() -> None:
    async with serving(max_input_token_len=2) as running:
        body = {"text_input": "one two three", "parameters": {"temperature": -1}}
        error = assert_error(await post(running.port, body), 424, "Generation Error")
        assert "3 prompt tokens" in error
        assert not running.engine.submitted


@pytest.mark.parametrize(("padding", "on_the_loop"), [(0, True), (1024 * 1024, False)])
@pytest.mark.parametrize("path", [STREAM_PATH, f"/v2/models/{MODEL}/stopInfer"])
async def test_a_large_body_does_not_hold_the_loop(
    path: str, padding: int, on_the_loop: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []

    def watched(body: bytes, contract: Contract) -> dict[str, Any]:
        threads.append(threading.current_thread())
        return parse_object(body, contract)

    monkeypatch.setattr("proxy.generation.parse_object", watched)
    async with serving() as running:
        await post(running.port, generate_body(padding="x" * padding), path)
    assert [thread is threading.current_thread() for thread in threads] == [on_the_loop]


@pytest.mark.alone
async def test_the_engine_is_asked_last() -> None:
    """A full gateway tells a faulty request of its fault, not of the lack of room."""
    async with serving(max_requests=1) as running:
        running.gateway.admission.limit = 0
        assert (await post(running.port, faulty(2))).status == 422
        assert (await post(running.port, generate_body())).status == 503


@pytest.mark.parametrize(
    ("own", "model_len", "positions", "limit"),
    [(5, 100, 100, 5), (None, 10, 100, 9), (None, 100, 7, 7), (50, 10, 100, 9)],
)
async def test_the_most_prompt_tokens(
    own: int | None, model_len: int, positions: int, limit: int
) -> None:
    info = replace(STUB_INFO, max_model_len=model_len, max_position_embeddings=positions)
    async with serving(StubEngine(info=info), max_input_token_len=own) as running:
        assert (await post(running.port, generate_body("x " * limit, 1))).status == 200
        response = await post(running.port, generate_body("x " * (limit + 1), 1))
        assert f"at most {limit}" in assert_error(response, 424, "Generation Error")


async def test_no_prompt_token_at_all_is_422() -> None:
    async with serving() as running:
        assert_error(await post(running.port, generate_body(" ")), 422, "Input Validation Error")


@pytest.mark.parametrize(
    ("asked", "iterations", "prompt", "granted"),
    [(7, None, 2, 7), (2**31 - 1, None, 2, 98), (50, 9, 2, 9), (50, 90, 60, 40), (1, 9, 99, 1)],
)
async def test_new_tokens_are_cut_never_refused(
    asked: int, iterations: int | None, prompt: int, granted: int
) -> None:
    info = replace(STUB_INFO, max_model_len=100)
    async with serving(StubEngine(info=info), max_iter_times=iterations) as running:
        response = await post(running.port, generate_body("x " * prompt, asked, details=True))
        assert len(response.frames) == granted
        assert response.frames[-1]["details"]["finish_reason"] == "length"


@pytest.mark.parametrize(("priority", "given"), [(1, -4), (2, -3), (5, 0), (None, 0)])
async def test_priorities(priority: int | None, given: int) -> None:
    async with serving() as running:
        await post(running.port, generate_body(priority=priority))
        (request,) = running.engine.submitted
        assert request.priority == given


@pytest.mark.alone
async def test_a_priority_that_the_engine_cannot_honour_is_counted_and_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = StubEngine(info=replace(STUB_INFO, priority_scheduling=False))
    async with serving(engine) as running:
        for priority in (1, 2, 5, None):
            assert (await post(running.port, generate_body(priority=priority))).complete
        assert {request.priority for request in engine.submitted} == {0}
        assert running.metric("mindie_gateway_priority_ignored_total") == 2
    warnings = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert "priority" in warnings[0]


@pytest.mark.alone
async def test_whose_id_it_is() -> None:
    """The body's, else the header `req-id` when it can be an id, else a generated one."""
    header = ("req-id: from-header",)
    async with serving() as running:

        async def id_of(body: dict[str, Any], headers: tuple[str, ...] = ()) -> Any:
            response = await post(running.port, {**generate_body(), **body}, headers=headers)
            (only,) = {frame["id"] for frame in response.frames}
            return only

        assert await id_of({"id": "from-body"}, header) == "from-body"
        assert await id_of({"id": None}, header) == "from-header"
        assert await id_of({}) == "endpoint_common_1"
        assert await id_of({}, ("req-id: no id!",)) == "endpoint_common_2"
        assert await id_of({}, ("req-id: " + "x" * 257,)) == "endpoint_common_3"


async def test_the_engine_never_sees_the_client_id() -> None:
    async with serving() as running, connection(running.port) as client:
        for _ in range(2):
            await client.ask(request_bytes({"id": "same", **generate_body()}))
        first, second = (request.request_id for request in running.engine.submitted)
        assert first != second
        assert "same" not in (first, second)


@pytest.mark.parametrize(
    ("header", "status"), [(None, 200), ("false", 200), ("true", 422), ("TRUE", 422)]
)
async def test_recompute_fields_of_the_server_contract(header: str | None, status: int) -> None:
    headers = () if header is None else (f"is-recompute: {header}",)
    async with serving(contract="server") as running:
        response = await post(running.port, generate_body(firstTokenCost=-1), headers=headers)
        assert response.status == status


async def test_the_dialect_is_a_switch() -> None:
    body = {"text_input": ["one two"], "max_tokens": 2}
    async with serving() as running:
        assert (await post(running.port, body)).texts == [" one", " two"]
    async with serving(triton_dialect=False) as running:
        assert_error(await post(running.port, body), 422, "Input Validation Error")


async def test_stop_words_end_the_stream_and_free_the_engine() -> None:
    body = {"text_input": "one two three", "max_tokens": 1000, "stop_words": "three"}
    async with serving() as running:
        response = await post(running.port, body)
        assert response.complete
        assert "".join(response.texts) == " one two "
        await running.settled(succeeded=1)
        assert len(running.engine.cancelled) == 1


async def test_accumulated_text() -> None:
    body = {"text_input": "a b", "max_tokens": 3, "accumulate_tokens": True}
    async with serving() as running:
        assert (await post(running.port, body)).texts == [" a", " a b", " a b a"]


@pytest.mark.alone
async def test_large_bodies_are_parsed_one_at_a_time() -> None:
    """While one is, the next waits, and small ones go past it."""
    large = generate_body("a " * 600_000)
    async with serving() as running, connection(running.port) as client:
        async with running.gateway.parsing:
            client.send(request_bytes(large))
            await eventually(lambda: running.gateway.parsing._waiters)
            assert (await post(running.port, generate_body())).status == 200
            assert running.outcomes == {"succeeded": 1}
        assert (await client.response()).status in (200, 424)
