"""Connections: malformed HTTP, keep-alive, pipelining, half-closed clients."""

from __future__ import annotations

import asyncio

import pytest

from proxy.engines.stub import StubEngine, silent
from tests.proxy.test_app import assert_error
from tests.support import (
    STREAM_PATH,
    connection,
    eventually,
    exchange,
    generate_body,
    get_bytes,
    only_stream,
    request_bytes,
    serving,
    token,
)

pytestmark = pytest.mark.usefixtures("workers")

POST = f"POST {STREAM_PATH} HTTP/1.1\r\nHost: test\r\n".encode()
GET = b"GET /v2/health/live HTTP/1.1\r\nHost: test\r\n"
MALFORMED = {
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64) + b"\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "no HTTP": b"hello\r\n\r\n",
    "no method": b" / HTTP/1.1\r\nHost: test\r\n\r\n",
    "a method that is no token": b"(GET) / HTTP/1.1\r\nHost: test\r\n\r\n",
    "unknown version": b"GET / HTTP/9.9\r\nHost: test\r\n\r\n",
    "HTTP/2.0": b"GET /v2/health/live HTTP/2.0\r\nHost: test\r\n\r\n",
    "HTTP/0.9 with headers": b"GET /v2/health/live\r\nHost: test\r\n\r\n",
    "no Host": b"GET /v2/health/live HTTP/1.1\r\n\r\n",
    "header without colon": GET + b"oops\r\n\r\n",
    "space before colon": GET + b"A : b\r\n\r\n",
    "folded header": GET + b"A: b\r\n c\r\n\r\n",
    "NUL in a header": GET + b"A: b\x00\r\n\r\n",
    "NUL in the target": b"GET /\x00 HTTP/1.1\r\nHost: test\r\n\r\n",
    "bare line feeds": b"GET / HTTP/1.1\nHost: test\n\n",
    "long target": b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: test\r\n\r\n",
    "long header": GET + b"A: " + b"a" * 9000 + b"\r\n\r\n",
    "many headers": GET + b"a: b\r\n" * 200 + b"\r\n",
    "target without slash": b"GET foo HTTP/1.1\r\nHost: test\r\n\r\n",
    "bad port": b"GET http://a:b/ HTTP/1.1\r\nHost: test\r\n\r\n",
    "length and chunked": POST
    + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "two lengths": POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{} ",
    "negative length": POST + b"Content-Length: -1\r\n\r\n",
    "length is no number": POST + b"Content-Length: 1e3\r\n\r\n",
    "bad chunk size": POST + b"Transfer-Encoding: chunked\r\n\r\nZZ\r\n{}\r\n0\r\n\r\n",
    "unknown transfer encoding": POST + b"Transfer-Encoding: gzip\r\n\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("raw", MALFORMED.values(), ids=MALFORMED.keys())
async def test_malformed_http_is_400_json_and_the_end_of_the_connection(raw: bytes) -> None:
    async with serving() as running:
        async with connection(running.port) as client:
            response = await client.ask(raw)
            assert_error(response, 400, "Bad Request")
            assert len(response.headers["requestuuid"]) == 32
            assert await client.rest() == b""
        alive = await exchange(running.port, get_bytes("/v2/health/live"))
        assert alive.status == 200


@pytest.mark.parametrize("method", ["BREW", "get", "post", "GENERATE-STREAM", "G+T", "POSTS"])
async def test_a_method_that_nobody_knows_is_404_as_any_other_method(method: str) -> None:
    async with serving() as running, connection(running.port) as client:
        response = await client.ask(get_bytes("/v2/health/live", method=method))
        assert_error(response, 404, "NotFoundError")
        assert await client.rest() == b""


@pytest.mark.parametrize(
    "begun", [b"", b'5\r\n{"tex\r\n'], ids=["in the first chunk", "in a later chunk"]
)
async def test_a_body_that_turns_malformed_is_answered_at_once(begun: bytes) -> None:
    """The handler is already waiting for the rest, which will never be understood."""
    async with serving() as running, connection(running.port) as client:
        client.send(POST + b"Transfer-Encoding: chunked\r\n\r\n" + begun)
        in_flight = "mindie_gateway_requests_in_flight"
        await eventually(lambda: running.metric(in_flight) == 1)
        client.send(b"ZZ\r\n")
        assert_error(await client.response(), 400, "Bad Request")
        assert await client.rest() == b""
        await running.settled(refused=1)


@pytest.mark.alone
async def test_a_malformed_body_behind_a_running_request_is_answered_in_its_turn() -> None:
    engine = StubEngine(silent)
    async with serving(engine) as running, connection(running.port) as client:
        client.send(request_bytes(generate_body()))
        stream = await only_stream(engine)
        client.send(POST + b"Transfer-Encoding: chunked\r\n\r\n")
        client.send(b"ZZ\r\n")
        await client.head()
        # Both packets are there before the first request ends.
        await eventually(lambda: running.gateway.live)
        stream.stop()
        assert b"stop" not in await client.chunk()
        assert await client.chunk() == b""
        assert_error(await client.response(), 400, "Bad Request")


async def test_a_connection_serves_many_requests_one_after_another() -> None:
    async with serving() as running, connection(running.port) as client:
        for number in range(20):
            response = await client.ask(request_bytes(generate_body(f"n{number}", 2)))
            assert response.texts == [f" n{number}"] * 2
            assert (await client.ask(request_bytes(b"{"))).status == 422
            assert (await client.ask(request_bytes(b"{}", "/nowhere"))).status == 404
            assert (await client.ask(get_bytes("/v2/health/live"))).status == 200
        await running.settled(succeeded=20, refused=20)


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with serving() as running, connection(running.port) as client:
        raw = [request_bytes(generate_body(f"n{number}", 2)) for number in range(50)]
        client.send(b"".join(raw))
        for number in range(50):
            assert (await client.response()).texts == [f" n{number}"] * 2
        await running.settled(succeeded=50)


async def test_a_client_that_half_closes_gets_what_is_ready_at_once() -> None:
    """`nc -N` and simple health checks send their request and close their half."""
    for raw in (get_bytes("/v2/health/live"), request_bytes(generate_body(tokens=1))):
        async with serving() as running, connection(running.port) as client:
            client.send(raw)
            await client.half_close()
            answer = await client.response()
            assert answer.status == 200
            assert answer.complete
            assert await client.rest() == b""


async def test_a_half_closed_client_is_taken_for_gone() -> None:
    """Nobody can tell it from one that has left, whose engine request must go (contract §5)."""
    engine = StubEngine(silent)
    async with serving(engine) as running, connection(running.port) as client:
        client.send(request_bytes(generate_body()))
        await only_stream(engine)
        await client.head()
        await client.half_close()
        assert await client.rest() == b""
        await running.settled(cancelled=1)
        assert len(engine.cancelled) == 1


async def test_an_idle_client_that_leaves_is_forgotten_at_once() -> None:
    async with serving() as running, connection(running.port) as client:
        await client.ask(get_bytes("/v2/health/live"))
        started = asyncio.get_running_loop().time()
        await client.half_close()
        assert await client.rest() == b""
        assert asyncio.get_running_loop().time() - started < 0.09


async def test_a_request_in_pieces_is_one_request() -> None:
    raw = request_bytes(generate_body(tokens=1))
    async with serving() as running, connection(running.port) as client:
        for position in range(0, len(raw), 7):
            client.send(raw[position : position + 7])
            await asyncio.sleep(0)
        assert (await client.response()).texts == [" one"]


async def test_a_stream_goes_on_while_its_client_sends_the_next_request() -> None:
    engine = StubEngine(silent)
    async with serving(engine) as running, connection(running.port) as client:
        client.send(request_bytes(generate_body(tokens=3)))
        stream = await only_stream(engine)
        client.send(get_bytes("/v2/health/live"))
        await client.head()
        for text in ("a", "b", "c"):
            stream.push(token(text))
            assert text.encode() in await client.chunk()
        stream.stop()
        assert await client.chunk()
        assert await client.chunk() == b""
        assert (await client.response()).status == 200


async def test_a_thousand_idle_connections_do_not_disturb() -> None:
    async with serving() as running:
        idle = await asyncio.gather(
            *(asyncio.open_connection("127.0.0.1", running.port) for _ in range(1000))
        )
        answer = await exchange(running.port, request_bytes(generate_body()))
        assert answer.texts == [" one", " two", " one"]
        for _, writer in idle:
            writer.transport.abort()
