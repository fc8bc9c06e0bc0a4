"""Request bodies (contract §1): sizes, encodings, chunked bodies, invitations, deadlines."""

from __future__ import annotations

import tracemalloc

import pytest

from tests.proxy.test_app import assert_error
from tests.support import (
    STREAM_PATH,
    Connection,
    RawResponse,
    RunningGateway,
    connection,
    eventually,
    generate_body,
    get_bytes,
    post,
    request_bytes,
    serving,
)

pytestmark = pytest.mark.usefixtures("workers")

LIMIT = 4096
CHUNKED = (
    f"POST {STREAM_PATH} HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
)
BODY = b'{"text_input":"one two","parameters":{"max_new_tokens":2}}'


def head(length: int, *headers: str, path: str = STREAM_PATH) -> bytes:
    """The head of a request whose body will follow, or not."""
    lines = (f"POST {path} HTTP/1.1", "Host: test", f"Content-Length: {length}", *headers)
    return "\r\n".join([*lines, "", ""]).encode()


def chunked(*parts: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def padded(size: int) -> bytes:
    """A valid body of exactly `size` bytes."""
    return BODY + b" " * (size - len(BODY))


def assert_too_large(response: RawResponse, limit: int = LIMIT) -> None:
    assert response.status == 413
    assert response.headers["content-type"] == "application/json"
    assert response.json == {"message": f"the request body is larger than {limit} bytes"}


@pytest.mark.parametrize(
    "parts",
    [[BODY], [bytes([byte]) for byte in BODY], [BODY[:9], BODY[9:]]],
    ids=["one chunk", "a byte each", "two"],
)
async def test_chunked_bodies(parts: list[bytes]) -> None:
    async with serving() as running, connection(running.port) as client:
        response = await client.ask(CHUNKED + chunked(*parts))
        assert response.texts == [" one", " two"]
        assert (await client.ask(get_bytes("/v2/health/live"))).status == 200


async def test_chunk_extensions_and_trailers_are_skipped() -> None:
    async with serving() as running, connection(running.port) as client:
        body = b"%x;a=b\r\n%b\r\n0\r\nX-Trailer: 1\r\n\r\n" % (len(BODY), BODY)
        assert (await client.ask(CHUNKED + body)).texts == [" one", " two"]


async def test_a_body_of_the_limit_is_taken_and_one_more_byte_is_not() -> None:
    async with serving(body_limit=LIMIT) as running, connection(running.port) as client:
        assert (await client.ask(request_bytes(padded(LIMIT)))).status == 200
        assert (await client.ask(CHUNKED + chunked(padded(LIMIT)))).status == 200
        assert_too_large(await client.ask(request_bytes(padded(LIMIT + 1))))
        assert_too_large(await client.ask(CHUNKED + chunked(padded(LIMIT), b" ")))
        await running.settled(succeeded=2, refused=2)


async def test_a_declared_length_over_the_limit_is_refused_unread() -> None:
    async with serving(body_limit=LIMIT) as running, connection(running.port) as client:
        client.send(head(LIMIT + 1))
        assert_too_large(await client.response())


async def test_the_default_limit_is_40_mib() -> None:
    async with serving() as running, connection(running.port) as client:
        client.send(head(40 * 1024 * 1024 + 1))
        assert_too_large(await client.response(), 41943040)


async def test_a_refused_body_may_be_sent_and_the_connection_used_again() -> None:
    async with serving(body_limit=LIMIT) as running, connection(running.port) as client:
        for _ in range(3):
            assert_too_large(await client.ask(request_bytes(b" " * 1_000_000)))
        assert (await client.ask(request_bytes(BODY))).status == 200


async def test_no_more_than_the_limit_is_held_of_an_endless_body() -> None:
    """64 MiB come in, 1 MiB is allowed: what is held at the worst moment stays near that."""
    limit, sent = 1024 * 1024, 64
    megabyte = b"%x\r\n%b\r\n" % (limit, b" " * limit)
    async with serving(body_limit=limit) as running, connection(running.port) as client:
        tracemalloc.start()
        try:
            client.send(CHUNKED)
            for _ in range(sent):
                client.send(megabyte)
                await client.drain()
            client.send(b"0\r\n\r\n")
            assert_too_large(await client.response(), limit)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    # The limit with its growth, one piece on its way on either side, the rest small.
    assert peak < 5 * limit


@pytest.mark.parametrize(
    "encoding", ["gzip", "deflate", "br", "zstd", "x", "identity, gzip", "GZIP", "identity", ""]
)
async def test_content_encoding_is_415(encoding: str) -> None:
    headers = (f"Content-Encoding: {encoding}",)
    async with serving() as running, connection(running.port) as client:
        response = await client.ask(request_bytes(b"\x1f\x8b\x08", headers=headers))
        assert_error(response, 415, "Unsupported Media Type")
        assert (await client.ask(request_bytes(BODY))).status == 200
        await running.settled(succeeded=1, refused=1)


@pytest.mark.parametrize("body", [b"", b"\n", b"\xff", b"[]", b"no json"])
async def test_a_body_that_is_no_json_object_is_422(body: bytes) -> None:
    async with serving() as running:
        assert_error(await post(running.port, body), 422, "Input Validation Error")


async def test_a_post_without_any_body_is_422() -> None:
    async with serving() as running, connection(running.port) as client:
        client.send(get_bytes(STREAM_PATH, method="POST"))
        assert_error(await client.response(), 422, "Input Validation Error")


# Expect: 100-continue: the body is invited only when nothing speaks against it.


async def invited(client: Connection) -> None:
    assert await client.reader.readexactly(25) == b"HTTP/1.1 100 Continue\r\n\r\n"


@pytest.mark.parametrize("expects", ["100-continue", "100-Continue"])
async def test_a_client_that_asks_first_is_invited(expects: str) -> None:
    async with serving() as running, connection(running.port) as client:
        for _ in range(2):
            client.send(head(len(BODY), f"Expect: {expects}"))
            await invited(client)
            client.send(BODY)
            assert (await client.response()).texts == [" one", " two"]
        await running.settled(succeeded=2)


async def test_an_error_after_the_invitation_is_a_plain_answer() -> None:
    async with serving() as running, connection(running.port) as client:
        client.send(head(1, "Expect: 100-continue"))
        await invited(client)
        client.send(b"{")
        assert_error(await client.response(), 422, "Input Validation Error")
        assert (await client.ask(request_bytes(BODY))).status == 200


@pytest.mark.parametrize(
    ("request_head", "status"),
    [
        (head(LIMIT + 1, "Expect: 100-continue"), 413),
        (head(9, "Expect: 100-continue", "Content-Encoding: gzip"), 415),
        (head(9, "Expect: 100-continue", path="/v2/models/other/generate_stream"), 404),
        (head(9, "Expect: 100-continue", path="/nowhere"), 404),
        (head(9, "Expect: 100-continue", path="/v2/models/m/versions/1/infer"), 404),
    ],
)
async def test_a_body_that_would_be_refused_is_not_invited(
    request_head: bytes, status: int
) -> None:
    async with serving(body_limit=LIMIT) as running, connection(running.port) as client:
        client.send(request_head)
        response = await client.response()
        assert response.status == status
        # The client may or may not send its body now: nothing can follow on this connection.
        assert response.headers["connection"] == "close"


async def test_an_http_1_0_client_is_not_invited() -> None:
    async with serving() as running, connection(running.port) as client:
        client.send(head(len(BODY), "Expect: 100-continue").replace(b"/1.1", b"/1.0"))
        await _in_flight(running)
        client.send(BODY)
        assert (await client.rest()).startswith(b"HTTP/1.0 200 OK")


async def test_an_unknown_expectation_is_no_reason_to_refuse() -> None:
    async with serving() as running, connection(running.port) as client:
        assert (await client.ask(request_bytes(BODY, headers=("Expect: a-miracle",)))).complete
        assert (await client.ask(get_bytes("/nowhere", headers=("Expect: x",)))).status == 404


async def test_a_body_that_does_not_come_in_time_is_400() -> None:
    async with serving(body_timeout=0.1) as running, connection(running.port) as client:
        client.send(head(len(BODY)) + BODY[:-1])
        response = await client.response()
        assert "0.1 s" in assert_error(response, 400, "Bad Request")
        # Its rest may still come, so nothing else can.
        assert response.headers["connection"] == "close"
        await running.settled(refused=1)


async def test_a_client_that_leaves_while_sending_its_body_is_cancelled() -> None:
    async with serving() as running:
        async with connection(running.port) as client:
            client.send(head(len(BODY)) + BODY[:-1])
            await _in_flight(running)
        await running.settled(cancelled=1)


async def _in_flight(running: RunningGateway, count: int = 1) -> None:
    name = "mindie_gateway_requests_in_flight"
    await eventually(lambda: running.metric(name) == count)


@pytest.mark.alone
async def test_slow_bodies_do_not_keep_others_out() -> None:
    async with serving(max_requests=1) as running:
        slow = [connection(running.port) for _ in range(5)]
        clients = [await each.__aenter__() for each in slow]
        for client in clients:
            client.send(head(len(BODY)) + BODY[:-1])
        await _in_flight(running, 5)
        assert (await post(running.port, generate_body())).status == 200
        for client in clients:
            client.send(BODY[-1:])
            assert (await client.response()).status == 200
        for each in slow:
            await each.__aexit__(None, None, None)
