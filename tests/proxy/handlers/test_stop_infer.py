"""stopInfer ends every live request with a client's id, on whichever route (contract §7)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from proxy.engines.stub import StubEngine
from proxy.gateway import State
from tests.proxy.handlers.test_generate import GENERATE, INFER, infer_body
from tests.support import (
    MODEL,
    STOP_PATH,
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

JSON = "Content-Type: application/json"


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
        answer = await post(running.port, {"id": "mine", "why": [1]}, STOP_PATH)
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
        assert (await post(running.port, {"id": "mine"}, STOP_PATH)).status == 500


class StuckTokenizer(StubEngine):
    """Begins to tokenize and never ends."""

    tokenizing = 0

    async def tokenize(self, text: str) -> list[int]:
        self.tokenizing += 1
        await asyncio.Event().wait()
        raise AssertionError


async def test_requests_whose_prompts_are_being_made_are_stopped_as_well() -> None:
    engine = StuckTokenizer()
    async with (
        serving(engine) as running,
        connection(running.port) as streaming,
        connection(running.port) as whole,
        connection(running.port) as tgi,
        connection(running.port) as faulty,
    ):
        body = {"id": "mine", **generate_body(details=True)}
        streaming.send(request_bytes(body))
        whole.send(request_bytes(body, GENERATE))
        tgi.send(request_bytes({"inputs": "one"}, "/generate", headers=("req-id: mine", JSON)))
        faulty.send(request_bytes({**generate_body(top_k=0), "id": "mine"}))
        await eventually(lambda: engine.tokenizing == 4)
        assert (await post(running.port, {"id": "mine"}, STOP_PATH)).status == 200
        response = await streaming.response()
        assert response.complete
        assert response.texts == [""]
        last = response.frames[0]["details"]
        assert (last["finish_reason"], last["generated_tokens"]) == ("stop_sequence", 0)
        assert (await whole.response()).json["text_output"] == ""
        assert (await tgi.response()).json["generated_text"] == ""
        assert (await faulty.response()).status == 422
        assert engine.submitted == []
        await running.settled(succeeded=4, refused=1)
        assert (await post(running.port, {"id": "mine"}, STOP_PATH)).status == 500


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
        response = await post(running.port, body, STOP_PATH)
        assert (response.status, response.json["error_type"]) == (status, error_type)


async def test_an_unknown_model_is_404() -> None:
    async with serving() as running:
        response = await post(running.port, {"id": "a"}, STOP_PATH.replace(MODEL, "other"))
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
        assert (await post(running.port, {"id": "mine"}, STOP_PATH)).status == 200
        assert (await client.response()).complete
