"""stopInfer ends every live request with a client's id, on whichever route (contract §7)."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.engines.stub import StubEngine
from proxy.gateway import State
from tests.proxy.handlers.test_generate import GENERATE, INFER, infer_body
from tests.support import (
    MODEL,
    STREAM_PATH,
    connection,
    eventually,
    generate_body,
    post,
    request_bytes,
    scripted,
    serving,
    token,
)

pytestmark = pytest.mark.usefixtures("workers")

STOP = f"/v2/models/{MODEL}/stopInfer"


def one_token_then_silence() -> StubEngine:
    return StubEngine(scripted(token("half ", 7)))


async def test_every_request_with_the_id_ends_normally_and_no_other() -> None:
    async with (
        serving(one_token_then_silence()) as running,
        connection(running.port) as streaming,
        connection(running.port) as again,
        connection(running.port) as whole,
        connection(running.port) as tokens,
        connection(running.port) as other,
    ):
        body = {"id": "mine", **generate_body(details=True)}
        streaming.send(request_bytes(body))
        again.send(request_bytes(body))
        whole.send(request_bytes(body, GENERATE))
        tokens.send(request_bytes(infer_body(id="mine"), INFER))
        other.send(request_bytes({"id": "theirs", **generate_body()}))
        await eventually(lambda: len(running.engine.live) == 5)
        answer = await post(running.port, {"id": "mine", "why": [1]}, STOP)
        assert (answer.status, answer.json) == (200, {"id": "mine", "why": [1]})
        for client in (streaming, again):
            response = await client.response()
            assert response.complete
            assert response.texts == ["half ", ""]
            last = response.frames[-1]["details"]
            assert (last["finish_reason"], last["generated_tokens"]) == ("stop_sequence", 1)
        response = await whole.response()
        assert response.json["text_output"] == "half "
        assert response.json["details"]["finish_reason"] == "stop_sequence"
        assert (await tokens.response()).json["outputs"][0]["data"] == [7]
        assert len(running.engine.live) == 1
        # Finished is as unknown as never heard of.
        assert (await post(running.port, {"id": "mine"}, STOP)).status == 500


@pytest.mark.parametrize(
    ("body", "status", "error_type"),
    [
        ({"id": "nobody"}, 500, "Incomplete Generation"),
        ({}, 422, "Input Validation Error"),
        ({"id": None}, 422, "Input Validation Error"),
        ({"id": ""}, 422, "Input Validation Error"),
        ({"id": "a b"}, 422, "Input Validation Error"),
        ({"id": "x" * 257}, 422, "Input Validation Error"),
        ({"id": 3}, 422, "Input Validation Error"),
        (b"", 422, "Input Validation Error"),
        (b"[]", 422, "Input Validation Error"),
    ],
)
async def test_bad_and_unknown_ids(body: Any, status: int, error_type: str) -> None:
    async with serving() as running:
        response = await post(running.port, body, STOP)
        assert (response.status, response.json["error_type"]) == (status, error_type)


async def test_an_unknown_model_is_404() -> None:
    async with serving() as running:
        response = await post(running.port, {"id": "a"}, STOP.replace(MODEL, "other"))
    assert response.status == 404


@pytest.mark.alone
async def test_running_requests_can_be_stopped_while_the_gateway_drains() -> None:
    async with (
        serving(one_token_then_silence()) as running,
        connection(running.port) as client,
    ):
        client.send(request_bytes({"id": "mine", **generate_body()}, STREAM_PATH))
        await eventually(lambda: running.engine.live)
        running.gateway.enter(State.DRAINING)
        assert (await post(running.port, {"id": "mine"}, STOP)).status == 200
        assert (await client.response()).complete
