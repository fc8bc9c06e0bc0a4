"""generate and infer on the wire: one answer, its failures, and clients that leave."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from proxy.engines.stub import StubEngine, silent
from tests.support import (
    MODEL,
    connection,
    eventually,
    generate_body,
    only_stream,
    post,
    request_bytes,
    scripted,
    serving,
    token,
)
from translators.errors import IncompleteGeneration
from translators.tokens import FinishReason

pytestmark = pytest.mark.usefixtures("workers")

GENERATE = f"/v2/models/{MODEL}/generate"
INFER = f"/v2/models/{MODEL}/infer"


def infer_body(*ids: int, tokens: int = 3, **fields: Any) -> dict[str, Any]:
    data = list(ids) or [5, 6, 7]
    return {
        "inputs": [
            {
                "name": "input0",
                "shape": [1, len(data)],
                "datatype": "UINT32",
                "data": data,
                "parameters": {"max_new_tokens": tokens},
            }
        ],
        "outputs": [{"name": "output0"}],
        **fields,
    }


BODIES = [(GENERATE, generate_body()), (INFER, infer_body())]
ROUTES = pytest.mark.parametrize(("path", "body"), BODIES, ids=["generate", "infer"])


async def test_generate_answers_with_one_object() -> None:
    async with serving() as running:
        body = {"id": "a1", **generate_body("one two", 3, details=True)}
        response = await post(running.port, body, GENERATE)
        await running.settled(succeeded=1)
    assert response.status == 200
    assert response.headers["content-type"] == "application/json"
    assert list(response.json) == ["id", "model_name", "model_version", "text_output", "details"]
    assert response.json["text_output"] == " one two one"
    assert response.json["details"]["batch_size"] == [1, 1, 1]
    assert response.json["details"]["queue_wait_time"] == [0, 0, 0]


async def test_infer_answers_with_token_ids() -> None:
    async with serving() as running:
        response = await post(running.port, infer_body(5, 6, 31_999, id="a1"), INFER)
        await running.settled(succeeded=1)
        assert running.engine.submitted[0].prompt == [5, 6, 31_999]
        assert running.engine.submitted[0].text == ""
    assert response.json == {
        "id": "a1",
        "outputs": [{"name": "output0", "shape": [1, 3], "datatype": "UINT32", "data": [1, 2, 3]}],
    }


async def test_infer_takes_the_binary_tensors_of_tritons_client() -> None:
    head = (
        b'{"inputs":[{"name":"input0","shape":[2],"datatype":"UINT32",'
        b'"parameters":{"binary_data_size":8}}],"outputs":[{"name":"output0",'
        b'"parameters":{"binary_data":true}}],"parameters":{"max_new_tokens":1}}'
    )
    binary = b"\x05\0\0\0\x06\0\0\0"
    length = (f"Inference-Header-Content-Length: {len(head)}",)
    async with serving() as running:
        response = await post(running.port, head + binary, INFER, headers=length)
        assert running.engine.submitted[0].prompt == [5, 6]
    assert response.json["outputs"][0]["data"] == [1]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (infer_body(32_000), 422),
        (infer_body(*[1] * 2048), 424),
        ({**infer_body(), "outputs": []}, 422),
        ({**infer_body(), "inputs": infer_body()["inputs"] * 2}, 422),
        (infer_body(id="a b"), 422),
        (b"[]", 422),
    ],
)
async def test_the_engine_never_sees_bad_tensors(body: Any, status: int) -> None:
    async with serving() as running:
        response = await post(running.port, body, INFER)
        assert response.status == status, response.body
        assert running.engine.submitted == []
        await running.settled(refused=1)


@ROUTES
async def test_an_unknown_model_is_404_whatever_the_body(path: str, body: Any) -> None:
    async with serving() as running:
        response = await post(running.port, b"{", path.replace(MODEL, "other"))
    assert response.status == 404


@ROUTES
async def test_an_engine_failure_is_a_500(path: str, body: Any) -> None:
    async with serving() as running:
        running.engine.script = scripted(token(" one"))
        async with connection(running.port) as client:
            client.send(request_bytes(body, path))
            stream = await only_stream(running.engine)
            stream.fail(IncompleteGeneration("the engine died"))
            response = await client.response()
        await running.settled(failed=1)
    assert response.status == 500
    assert response.json == {"error": "the engine died", "error_type": "Incomplete Generation"}


@pytest.mark.parametrize("path", [GENERATE, INFER])
async def test_the_clients_timeout_is_for_the_whole_answer(path: str) -> None:
    """Tokens that keep coming do not restart it."""
    beat = asyncio.Event()

    async def drip(request: Any) -> Any:
        number = 0
        while True:
            number += 1
            yield token(".", number)
            await asyncio.sleep(0.05)
            beat.set()

    body = generate_body(tokens=1000, timeout=1)
    if path == INFER:
        body = infer_body(tokens=1000, parameters={"timeout": 1})
    async with serving(StubEngine(drip)) as running:
        response = await post(running.port, body, path)
        await running.settled(failed=1)
        assert len(running.engine.cancelled) == 1
    assert beat.is_set()
    assert response.status == 500
    assert response.json["error_type"] == "Incomplete Generation"
    assert "client timeout" in response.json["error"]


@pytest.mark.parametrize(
    ("settings", "word"),
    [({"token_timeout": 0.05}, "tokenTimeout"), ({"e2e_timeout": 0.05}, "e2eTimeout")],
)
async def test_the_servers_clocks_hold_for_whole_answers_too(
    settings: dict[str, Any], word: str
) -> None:
    async with serving(StubEngine(silent), **settings) as running:
        response = await post(running.port, generate_body(), GENERATE)
    assert response.status == 500
    assert word in response.json["error"]


@ROUTES
async def test_a_client_that_leaves_is_cancelled(path: str, body: Any) -> None:
    async with serving(StubEngine(silent)) as running:
        async with connection(running.port) as client:
            client.send(request_bytes(body, path))
            await only_stream(running.engine)
            await client.reset()
            await eventually(lambda: running.engine.cancelled, within=1.0)
        await running.settled(cancelled=1)


@pytest.mark.alone
async def test_a_broken_whole_answer_is_a_failure_not_a_refusal() -> None:
    """The drain deadline breaks what the engine has taken: 503, but nothing was refused."""
    async with serving(StubEngine(silent)) as running, connection(running.port) as client:
        client.send(request_bytes(generate_body(), GENERATE))
        await only_stream(running.engine)
        running.gateway.live.break_all(running.gateway.unavailable())
        assert (await client.response()).status == 503
        await running.settled(failed=1)


async def test_a_stop_word_ends_the_answer_and_the_engines_work() -> None:
    async with serving() as running:
        body = {**generate_body("one two three", 1000), "stop_words": "two"}
        response = await post(running.port, body, GENERATE)
        await running.settled(succeeded=1)
    assert response.json["text_output"] == " one "


async def test_an_answer_of_half_a_character_only() -> None:
    async with serving() as running:
        running.engine.script = scripted(token("", finish=FinishReason.END))
        response = await post(running.port, generate_body(), GENERATE)
    assert response.json["text_output"] == ""
