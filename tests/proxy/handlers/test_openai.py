"""/v1 through the gateway to a vLLM server: untouched, and beside the legacy routes."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from proxy.engines.openai import end_to_end
from tests.fake_vllm import EVENT_STREAM, Answer, Call, FakeVllm, Tokenizer, fake_vllm
from tests.proxy.engines.remote.sidecar import Sidecar, ask, sidecar
from tests.support import (
    MODEL,
    RawResponse,
    connection,
    connections,
    exchange,
    get,
    post,
    request_bytes,
    serving,
)

CHAT = "/v1/chat/completions"
EVENTS = [
    b'data: {"id":"1","choices":[{"delta":{"content":"\xe4\xbd"',
    b'\xa0"}}]}\n\n',
    b": keep-alive\n\n",
    b'data: {"choices":[],"usage":{"total_tokens":9}}\n\ndata: [DONE]\n\n',
]


async def chat(call: Call) -> None:
    """A stream, cut where no event ends."""
    call.server.calls.append(call)
    await call.send(EVENT_STREAM.replace(b"\r\n\r\n", b"\r\nx-request-id: abc\r\n\r\n"))
    for event in EVENTS:
        await call.chunk(event)
        await asyncio.sleep(0)
    await call.send(b"0\r\n\r\n")


@asynccontextmanager
async def chatting(
    answer: Answer = chat, path: str = CHAT, **settings: Any
) -> AsyncIterator[Sidecar]:
    """A sidecar whose server answers `path` with `answer`."""
    async with (
        fake_vllm(names=(MODEL,), others={path: answer}) as server,
        sidecar(server, **settings) as opened,
    ):
        yield opened


def plain(status: int, body: bytes, *headers: str) -> Answer:
    async def answer(call: Call) -> None:
        call.server.calls.append(call)
        lines = "".join(f"{header}\r\n" for header in headers)
        head = f"HTTP/1.1 {status} X\r\n{lines}content-length: {len(body)}\r\n\r\n"
        await call.send(head.encode() + body)

    return answer


async def test_a_stream_goes_through_byte_for_byte() -> None:
    async with chatting() as opened:
        response = await post(opened.port, {"stream": True, "messages": []}, CHAT)
        assert response.status == 200
        assert response.complete
        assert response.body == b"".join(EVENTS)
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert response.headers["x-request-id"] == "abc"
        assert response.headers["server"] == "mindie-gateway"
        await opened.settled(succeeded=1)


async def test_the_log_says_how_it_ended(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with chatting() as opened:
        await post(opened.port, {"messages": ["a secret"]}, CHAT)
        await opened.settled(succeeded=1)
    (line,) = [r for r in caplog.records if r.getMessage() == "request"]
    fields = line.fields  # type: ignore[attr-defined]
    assert fields["route"] == "/v1/{rest}"
    assert (fields["status"], fields["outcome"]) == (200, "succeeded")
    assert "secret" not in str(fields)


async def test_a_stream_is_passed_on_while_it_comes() -> None:
    go_on = asyncio.Event()

    async def answer(call: Call) -> None:
        await call.send(EVENT_STREAM)
        await call.chunk(b"data: 1\n\n")
        await go_on.wait()
        await call.chunk(b"data: 2\n\n")
        await call.send(b"0\r\n\r\n")

    async with chatting(answer) as opened, connection(opened.port) as client:
        client.send(request_bytes({}, CHAT))
        await client.head()
        assert await client.chunk() == b"data: 1\n\n"
        go_on.set()
        assert await client.chunk() == b"data: 2\n\n"
        assert await client.chunk() == b""


async def test_request_and_answer_cross_as_they_are() -> None:
    body = b'{"model": "smol",  "n": 1}'
    answer = plain(418, b"\x00teapot", "Content-Type: x/y", "Set-Cookie: a=1", "Set-Cookie: b=2")
    async with chatting(answer, "/v1/some%20thing?a=b&c=%2F") as opened:
        response = await exchange(
            opened.port,
            request_bytes(
                body,
                "/v1/some%20thing?a=b&c=%2F",
                method="PUT",
                headers=(
                    "Authorization: Bearer mine",
                    "Content-Type: text/json",
                    "X-Custom: 1",
                    "Connection: keep-alive, X-Hop",
                    "X-Hop: 1",
                ),
            ),
        )
        assert response.status == 418
        assert response.body == b"\x00teapot"
        assert response.headers["content-type"] == "x/y"
        assert response.headers["content-length"] == "7"
        assert response.head.lower().count(b"set-cookie") == 2
        (call,) = opened.server.calls
        assert call.document == {"method": "PUT", "body": body}
        assert call.headers["authorization"] == "Bearer mine"
        assert call.headers["content-type"] == "text/json"
        assert call.headers["x-custom"] == "1"
        assert "x-hop" not in call.headers
        assert call.headers["host"] == opened.server.url.removeprefix("http://")


@pytest.mark.parametrize(
    ("status", "outcome"),
    [(200, "succeeded"), (302, "succeeded"), (400, "refused"), (503, "refused"), (500, "failed")],
)
async def test_the_status_says_how_it_ended(status: int, outcome: str) -> None:
    async with chatting(plain(status, b"{}", "Location: /elsewhere")) as opened:
        response = await post(opened.port, {}, CHAT)
        assert (response.status, response.body) == (status, b"{}")
        await opened.settled(**{outcome: 1})


@pytest.mark.parametrize(
    "path",
    [
        "/v1/../metrics",
        "/v1/%2e%2e/metrics",
        "/v1/x/../../metrics",
        "/v1/..%2fmetrics",
        "/v1/.%2e\\metrics",
        "/v1/./models",
        "/v1",
        "/v11/models",
    ],
)
async def test_nothing_outside_of_v1_is_reached(path: str) -> None:
    async with chatting() as opened:
        before = len(opened.server.asked)
        response = await get(opened.port, path)
        assert response.status == 404
        assert not [p for p in opened.server.asked[before:] if p not in ("/health", "/metrics")]


async def test_a_broken_answer_does_not_end_like_a_good_one() -> None:
    async def answer(call: Call) -> None:
        await call.send(EVENT_STREAM)
        await call.chunk(b"data: 1\n\n")
        await call.server.gate.wait()
        call.reset()

    async with chatting(answer) as opened, connection(opened.port) as client:
        opened.server.gate.clear()
        client.send(request_bytes({}, CHAT))
        await client.head()
        await client.chunk()
        opened.server.gate.set()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await client.chunk()
        await opened.settled(failed=1)


async def test_what_came_of_a_broken_answer_goes_out_to_a_slow_client() -> None:
    """Also what waits for it in the gateway."""
    body = b"x" * 170_000

    async def answer(call: Call) -> None:
        await call.send(EVENT_STREAM)
        await call.server.gate.wait()
        await call.chunk(body)
        call.writer.close()

    async with (
        chatting(answer) as opened,
        connection(opened.port, receive_buffer=4096) as client,
    ):
        opened.server.gate.clear()
        client.send(request_bytes({}, CHAT))
        await client.head()
        (ours,) = connections()
        assert ours.transport is not None
        sock = ours.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        opened.server.gate.set()
        await opened.settled(failed=1)
        assert ours.transport.get_write_buffer_size(), "there is something to lose"
        response = await client.response_body()
        assert not response.complete
        assert response.body == body


async def test_failures_before_the_answer_are_worded_as_openai_does() -> None:
    async with chatting() as opened:
        await opened.server.stop()
        response = await post(opened.port, {}, CHAT)
        assert response.status == 503
        assert set(response.json["error"]) == {"message", "type", "param", "code"}
        assert response.json["error"]["code"] == 503
        await opened.settled(refused=1)


async def test_a_client_that_leaves_closes_the_upstreams_connection() -> None:
    gone = asyncio.Event()

    async def answer(call: Call) -> None:
        await call.send(EVENT_STREAM)
        try:
            await asyncio.Event().wait()
        finally:
            gone.set()

    async with chatting(answer) as opened, connection(opened.port) as client:
        client.send(request_bytes({}, CHAT))
        await client.head()
        await client.close()
        await asyncio.wait_for(gone.wait(), 1)
        await opened.settled(cancelled=1)


async def test_a_client_that_does_not_read_is_dropped_at_its_deadline() -> None:
    async def answer(call: Call) -> None:
        await call.send(EVENT_STREAM)
        while True:
            await call.chunk(b"x" * 50_000)

    async with (
        chatting(answer, write_timeout=0.2) as opened,
        connection(opened.port, receive_buffer=4096) as client,
    ):
        client.send(request_bytes({}, CHAT))
        await client.head()
        await opened.settled(cancelled=1)


async def test_a_body_over_the_limit_is_413() -> None:
    async with chatting(body_limit=1024) as opened:
        response = await post(opened.port, b"x" * 1025, CHAT)
        assert response.status == 413
        assert response.json["error"]["code"] == 413
        assert not opened.server.calls


async def test_the_models_are_the_servers_own() -> None:
    async with sidecar() as opened:
        response = await get(opened.port, "/v1/models")
        assert response.json["data"][0]["root"] == "/models/smol"
        assert (await get(opened.port, "/v1/models", method="HEAD")).status == 200


async def test_an_engine_without_an_openai_api_has_only_its_models() -> None:
    async with serving() as running:
        assert (await post(running.port, {}, CHAT)).status == 404
        assert (await get(running.port, "/v1/models")).json["data"][0]["id"] == MODEL


KEY = "s3cret"
KEYS = f"someone sha256:{hashlib.sha256(KEY.encode()).hexdigest()}"


async def keyed(opened: Sidecar, *headers: str) -> RawResponse:
    return await exchange(opened.port, request_bytes({}, CHAT, headers=headers))


async def test_keys_of_the_gateway_open_it_and_stay_here() -> None:
    async with chatting(api_keys=KEYS) as opened:
        refused = await keyed(opened)
        assert refused.status == 401
        assert refused.json["error"]["code"] == 401
        assert (await keyed(opened, f"Authorization: Bearer {KEY}")).status == 200
        (call,) = opened.server.calls
        assert "authorization" not in call.headers


async def test_the_key_for_the_upstream_takes_the_place_of_the_clients() -> None:
    async with chatting(options={"api_key": "upstream"}) as opened:
        await keyed(opened, "Authorization: Bearer mine")
        assert opened.server.calls[0].headers["authorization"] == "Bearer upstream"


async def test_websockets_are_refused() -> None:
    async with chatting() as opened:
        response = await keyed(opened, "Upgrade: websocket", "Connection: Upgrade")
        assert response.status == 404


async def test_old_and_new_clients_share_one_server_at_once() -> None:
    """Each can move on its own day."""
    async with chatting() as opened:
        legacy, new = await asyncio.gather(
            ask(opened, "one two", 20), post(opened.port, {"stream": True}, CHAT)
        )
        assert len(legacy.frames) == 20
        assert new.body == b"".join(EVENTS)


async def test_requests_go_to_the_least_busy_server() -> None:
    model: dict[str, Any] = {"names": (MODEL,), "tokenizer": Tokenizer(), "others": {CHAT: chat}}
    one, other = FakeVllm(**model), FakeVllm(**model)
    for server in (one, other):
        await server.start()
    async with sidecar(one, other) as opened:
        while not all(upstream.up for upstream in opened.engine._upstreams):
            await asyncio.sleep(0.002)
        for _ in range(4):
            await post(opened.port, {}, CHAT)
        assert len(one.calls) == len(other.calls) == 2
    for server in (one, other):
        await server.stop()


def test_hop_by_hop_headers_end_here() -> None:
    headers = [("Connection", "close, X-Mine"), ("x-mine", "1"), ("TE", "x"), ("Accept", "y")]
    assert end_to_end(headers) == (("Accept", "y"),)
    assert end_to_end([("Host", "h"), ("a", "b")], without=("host",)) == (("a", "b"),)


def test_bodies_of_errors_are_json() -> None:
    from translators.errors import NotFound

    assert orjson.loads(NotFound("x").openai_body())["error"]["message"] == "x"
