"""The TGI shape on the wire."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest

from proxy.engines.stub import StubEngine, silent
from proxy.gateway import State
from tests.support import (
    STOP_PATH,
    connection,
    eventually,
    get_bytes,
    only_stream,
    post,
    request_bytes,
    scripted,
    serving,
    token,
)
from translators.errors import GenerationError, IncompleteGeneration
from translators.tokens import FinishReason

pytestmark = pytest.mark.usefixtures("workers")

PATHS = ["/generate_stream", "/generate", "/"]


def body(inputs: str = "one two", tokens: int = 3, **parameters: Any) -> dict[str, Any]:
    return {"inputs": inputs, "parameters": {"max_new_tokens": tokens, **parameters}}


@pytest.mark.parametrize("path", ["/generate_stream", "/"])
async def test_a_stream_of_tgis_frames(path: str) -> None:
    async with serving() as running:
        response = await post(running.port, {**body(details=True), "stream": True}, path)
        await running.settled(succeeded=1)
    assert response.status == 200
    assert response.complete
    assert response.headers["content-type"] == "text/event-stream"
    assert [frame["index"] for frame in response.frames] == [1, 2, 3]
    assert [frame["token"]["text"] for frame in response.frames] == [" one", " two", " one"]
    assert [frame["generated_text"] for frame in response.frames] == [None, None, " one two one"]
    assert response.frames[-1]["details"] == {
        "finish_reason": "length",
        "generated_tokens": 3,
        "seed": None,
        "input_length": 2,
    }


async def test_a_whole_answer_and_its_list_form() -> None:
    async with serving() as running:
        one = await post(running.port, {**body(), "stream": True}, "/generate")
        listed = await post(running.port, body(), "/")
    assert one.headers["content-type"] == listed.headers["content-type"] == "application/json"
    assert one.json == {"generated_text": " one two one"}
    assert listed.json == [one.json]


async def test_details_of_prompt_and_answer() -> None:
    parameters = {"decoder_input_details": True, "return_full_text": True, "do_sample": True}
    async with serving() as running:
        response = await post(running.port, body(tokens=1, seed=5, **parameters), "/generate")
    details = response.json["details"]
    assert response.json["generated_text"] == "one two one"
    assert details["prefill"] == [
        {"id": 0, "text": "<0>", "logprob": None},
        {"id": 1, "text": "<1>", "logprob": None},
    ]
    assert [each["text"] for each in details["tokens"]] == [" one"]
    assert details["seed"] == 5


async def test_a_prompt_is_cut_from_its_front() -> None:
    async with serving() as running:
        await post(running.port, body("one two three four", truncate=2), "/generate")
        (request,) = running.engine.submitted
    assert request.prompt == [2, 3]
    # The text is longer than the prompt: nobody may take it for the prompt.
    assert request.text == ""


async def test_a_cut_prompt_may_have_been_too_long() -> None:
    async with serving() as running:
        long = "word " * 3000
        whole = await post(running.port, body(long), "/generate")
        cut = await post(running.port, body(long, truncate=10), "/generate")
    assert (whole.status, whole.json["error_type"]) == (422, "validation")
    assert cut.status == 200


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"{", "JSON"),
        (b"", "empty"),
        ({"parameters": {}}, '"inputs"'),
        ({"inputs": " "}, "prompt tokens"),
        (body(temperature=0), '"temperature"'),
        (body(adapter_id="x"), '"adapter_id"'),
    ],
)
async def test_refusals_are_tgis(path: str, raw: Any, reason: str) -> None:
    async with serving() as running:
        response = await post(running.port, raw, path)
        assert response.status == 422
        assert response.json["error_type"] == "validation"
        assert reason in response.json["error"]
        assert running.engine.submitted == []
        await running.settled(refused=1)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.alone
async def test_an_overloaded_gateway_is_429_as_tgi_is(path: str) -> None:
    async with (
        serving(StubEngine(silent), max_requests=1) as running,
        connection(running.port) as client,
    ):
        client.send(request_bytes(body(), "/generate"))
        await eventually(lambda: running.engine.live)
        response = await post(running.port, body(), path)
        assert (response.status, response.json["error_type"]) == (429, "overloaded")
        assert response.headers["retry-after"] == "1"
        assert (await eventually_refused(running)) == 1


async def eventually_refused(running: Any) -> float:
    name = "mindie_gateway_requests_finished_total"
    await eventually(lambda: running.metric(name, outcome="refused"))
    return float(running.metric(name, outcome="refused"))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.alone
async def test_what_the_engine_refuses_and_a_gateway_that_goes(path: str) -> None:
    async with serving() as running:
        running.engine.refusal = GenerationError("no")
        refused = await post(running.port, body(), path)
        running.gateway.enter(State.DRAINING)
        gone = await post(running.port, body(), path)
    assert (refused.status, refused.json["error_type"]) == (424, "generation")
    assert (gone.status, gone.json["error_type"]) == (503, "overloaded")


async def test_a_body_that_is_too_large_has_tgis_form() -> None:
    async with serving(body_limit=1024) as running:
        response = await post(running.port, body("x" * 2000), "/generate")
    assert response.status == 413
    assert response.json["error_type"] == "validation"


async def test_a_stream_that_breaks_ends_with_an_error_and_without_the_last_chunk() -> None:
    async with (
        serving(StubEngine(scripted(token("half")))) as running,
        connection(running.port) as client,
    ):
        client.send(request_bytes(body(), "/generate_stream"))
        await eventually(lambda: running.engine.live)
        (await only_stream(running.engine)).fail(IncompleteGeneration("the engine died"))
        response = await client.response()
        await running.settled(failed=1)
    assert not response.complete
    assert response.frames[-1] == {
        "error": "the engine died",
        "error_type": "incomplete_generation",
    }


@pytest.mark.parametrize("path", PATHS)
async def test_a_whole_answer_that_breaks_and_a_client_that_leaves(path: str) -> None:
    async with serving(StubEngine(silent)) as running:
        async with connection(running.port) as client:
            client.send(request_bytes(body(), path))
            await eventually(lambda: running.engine.live)
            await client.reset()
            await eventually(lambda: running.engine.cancelled, within=1.0)
        await running.settled(cancelled=1)


async def test_a_stop_sequence_ends_the_answer_with_its_text() -> None:
    async with serving() as running:
        stopped = body("one two three", 1000, stop=["two"], details=True)
        response = await post(running.port, stopped, "/generate")
        streamed = await post(running.port, stopped, "/generate_stream")
        await running.settled(succeeded=2)
        assert len(running.engine.cancelled) == 2
    assert response.json["generated_text"] == " one two"
    assert response.json["details"]["finish_reason"] == "stop_sequence"
    assert streamed.frames[-1]["generated_text"] == " one two"


async def test_stop_infer_finds_a_request_of_this_shape_by_its_header() -> None:
    async with (
        serving(StubEngine(scripted(token("half")))) as running,
        connection(running.port) as client,
    ):
        client.send(request_bytes(body(), "/generate_stream", headers=("req-id: mine",)))
        await eventually(lambda: running.engine.live)
        stop = await post(running.port, {"id": "mine"}, STOP_PATH)
        assert stop.status == 200
        response = await client.response()
    assert response.complete
    assert response.frames[-1]["generated_text"] == "half"


async def test_special_tokens_and_log_probabilities_are_shown() -> None:
    end = token("", 31_999, finish=FinishReason.END)._replace(logprob=-0.5)
    async with serving(StubEngine(scripted(token("a", 9)._replace(logprob=-1.5), end))) as running:
        response = await post(running.port, body(), "/generate_stream")
        assert running.engine.submitted[0].sampling.logprobs == 0
    shown = [(f["token"]["special"], f["token"]["logprob"]) for f in response.frames]
    assert shown == [(False, -1.5), (True, -0.5)]


async def test_get_on_these_paths_is_404() -> None:
    async with serving() as running, connection(running.port) as client:
        for path in PATHS:
            response = await client.ask(get_bytes(path))
            assert response.status == 404
            assert orjson.loads(response.body)["error_type"] == "NotFoundError"


async def test_the_frames_are_lines_that_any_client_can_split() -> None:
    """As huggingface_hub does: `data:` off, JSON in."""
    async with serving() as running:
        response = await post(running.port, {**body("你好 {} }{", 3), "stream": True}, "/")
    lines = response.body.decode().split("\n")
    frames = [json.loads(line[5:]) for line in lines if line.startswith("data:")]
    assert frames[-1]["generated_text"] == " 你好 {} }{"
