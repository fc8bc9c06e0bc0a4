"""What legacy clients need, rule by rule: each test bears the number and the name of its rule."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest

from proxy.engines.base import EngineRequest
from proxy.engines.stub import StubEngine
from tests.support import MODEL, STREAM_PATH, exchange, post, request_bytes, serving
from translators.errors import IncompleteGeneration
from translators.tokens import Finish, FinishReason, Token

pytestmark = pytest.mark.usefixtures("workers")

DETAILS: dict[str, Any] = {"text_input": "a b", "parameters": {"details": True}}


def _script(*texts: str, error: bool = False) -> StubEngine:
    async def play(request: EngineRequest) -> AsyncIterator[Token]:
        for number, text in enumerate(texts, 1):
            await asyncio.sleep(0)
            last = number == len(texts) and not error
            finish = Finish(FinishReason.END) if last else None
            yield Token(number, text, 0.001, 0.0, 1, finish)
        if error:
            raise IncompleteGeneration("broken by a test")

    return StubEngine(play)


async def test_1_one_frame_is_one_chunk_under_64_kib() -> None:
    async with serving() as running:
        response = await post(running.port, DETAILS)
    assert len(response.frames) == 20
    assert all(len(chunk) < 64 * 1024 for chunk in response.chunks)


@pytest.mark.parametrize(("space", "opening"), [(False, b"data:{"), (True, b"data: {")])
async def test_2_no_space_after_data_unless_asked(space: bool, opening: bytes) -> None:
    async with serving(data_space=space) as running:
        response = await post(running.port, DETAILS)
    assert all(chunk.startswith(opening) for chunk in response.chunks)


async def test_3_nothing_but_frames() -> None:
    async with serving() as running:
        response = await post(running.port, DETAILS)
    lines = [line for line in response.body.split(b"\n") if line]
    assert all(line.startswith(b"data:{") for line in lines)
    assert b"[DONE]" not in response.body


async def test_4_every_frame_has_its_fields_also_without_text() -> None:
    async with serving(_script("a", "", "b", "")) as running:
        response = await post(running.port, DETAILS)
    assert [frame["text_output"] for frame in response.frames] == ["a", "", "b", ""]
    for frame in response.frames:
        assert {"batch_size", "queue_wait_time", "generated_tokens"} <= set(frame["details"])


async def test_5_a_failed_stream_does_not_end_like_a_good_one() -> None:
    async with serving(_script("a", error=True)) as running:
        response = await post(running.port, DETAILS)
    assert response.frames[-1]["err_msg"]
    assert response.frames[-1]["text_output"] == ""
    assert not response.complete


async def test_6_errors_before_the_stream_are_json_with_a_status() -> None:
    async with serving() as running:
        response = await post(running.port, b"{")
    assert response.status == 422
    assert response.headers["content-type"] == "application/json"
    assert set(response.json) == {"error", "error_type"}


@pytest.mark.parametrize("header", [(), ("Content-Type: text/plain",), ("Content-Type: x",)])
async def test_7_the_content_type_of_a_request_does_not_matter(header: tuple[str, ...]) -> None:
    async with serving() as running:
        response = await exchange(running.port, request_bytes(DETAILS, headers=header))
    assert response.status == 200


async def test_8_never_compressed() -> None:
    raw = request_bytes(DETAILS, headers=("Accept-Encoding: gzip, deflate, br, zstd",))
    async with serving() as running:
        response = await exchange(running.port, raw)
    assert "content-encoding" not in response.headers
    assert response.frames


async def test_9_http_1_0_is_close_delimited() -> None:
    async with serving() as running:
        response = await exchange(running.port, request_bytes(DETAILS, version="1.0"))
    assert "transfer-encoding" not in response.headers
    assert response.body.count(b"data:") == 20


async def test_10_null_is_absent_and_unknown_fields_are_ignored() -> None:
    names = ["temperature", "top_k", "seed", "details", "timeout", "do_sample", "decodeTime"]
    body = {
        "id": None,
        "text_input": "a",
        "unknown": {"deep": [1]},
        "parameters": {**dict.fromkeys(names), "unknown": 1},
    }
    async with serving() as running:
        response = await post(running.port, body)
    assert response.status == 200
    assert len(response.frames) == 20


@pytest.mark.parametrize(
    "body",
    [
        {"text_input": "a b", "max_tokens": 3, "temperature": 0.0},
        {"text_input": ["a b"], "max_tokens": 3, "temperature": 1e-6, "stream": True},
        {"text_input": "a b", "parameters": {"max_tokens": 3}, "end_id": 2},
        {"text_input": "a b", "max_tokens": 3, "bad_words": "", "stop_words": ""},
    ],
)
async def test_11_the_triton_dialect_is_understood(body: dict[str, Any]) -> None:
    async with serving() as running:
        response = await post(running.port, body)
        (request,) = running.engine.submitted
    assert [frame["text_output"] for frame in response.frames] == [" a", " b", " a"]
    assert request.sampling.greedy


async def test_12_the_same_client_id_twice_at_once() -> None:
    body = {"id": "same", "text_input": "a", "parameters": {"max_new_tokens": 5}}
    async with serving() as running:
        responses = await asyncio.gather(*(post(running.port, body) for _ in range(5)))
        ids = {request.request_id for request in running.engine.submitted}
    assert all(response.complete for response in responses)
    assert {frame["id"] for response in responses for frame in response.frames} == {"same"}
    assert len(ids) == 5
    assert "same" not in ids


async def test_13_an_opening_brace_is_escaped_where_both_stand() -> None:
    async with serving(_script(r"\frac{a}{b}", "{", "}")) as running:
        response = await post(running.port, {"text_input": "a"})
    assert rb"\\frac\u007ba}\u007bb}" in response.chunks[0]
    assert [frame["text_output"] for frame in response.frames] == [r"\frac{a}{b}", "{", "}"]


async def test_14_generate_returns_arrays() -> None:
    async with serving() as running:
        path = f"/v2/models/{MODEL}/generate"
        body = {"text_input": "a", "parameters": {"details": True, "max_new_tokens": 3}}
        response = await post(running.port, body, path)
    assert len(response.json["details"]["batch_size"]) == 3
    assert len(response.json["details"]["queue_wait_time"]) == 3


@pytest.mark.parametrize(
    "path",
    [
        "/v2/health/live",
        "/v2/health/ready",
        f"/v2/models/{MODEL}/ready",
        f"/v2/models/{MODEL}/getSlotCount",
        "/v1/models",
    ],
)
async def test_15_the_routes_that_clients_call_beside_it(path: str) -> None:
    async with serving() as running:
        response = await exchange(running.port, request_bytes(b"", path, method="GET"))
    assert response.status == 200


@pytest.mark.alone
async def test_16_leaving_after_the_first_token_is_normal(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    body = {"text_input": "a", "parameters": {"max_new_tokens": 2000}}
    async with serving() as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(request_bytes(orjson.dumps(body), STREAM_PATH))
        await reader.readuntil(b"data:")
        writer.transport.abort()
        async with asyncio.timeout(5):
            while running.engine.live or running.gateway.live:
                await asyncio.sleep(0.01)
        assert len(running.engine.cancelled) == 1
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
