"""The stream as it stands on the wire (contract §4): raw bytes, headers, back-pressure."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator

import pytest

from proxy.engines.base import EngineRequest
from proxy.engines.stub import StubEngine, silent
from proxy.frame_writer import HIGH_WATER
from tests.support import (
    Connection,
    RawResponse,
    connection,
    connections,
    eventually,
    exchange,
    finish,
    frame_json,
    generate_body,
    only_stream,
    post,
    request_bytes,
    scripted,
    serving,
    token,
)
from translators.errors import IncompleteGeneration
from translators.tokens import FinishReason, Token

pytestmark = pytest.mark.usefixtures("workers")

STREAM_HEADERS = {
    "content-type": "text/event-stream",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}
LAST_CHUNK = b"0\r\n\r\n"
BIG = 16 * 1024
"""Characters of one token's text, to fill sockets fast."""


def frame(text: str) -> bytes:
    """What the wire must show for one token of a request with id `a`, without details."""
    return (
        b'data:{"id":"a","model_name":"llama3-70b","model_version":null,"text_output":"%b"}\n\n'
        % text.encode()
    )


def chunk(frame: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(frame), frame)


async def test_each_frame_is_one_chunk_and_nothing_follows_the_last() -> None:
    async with serving() as running, connection(running.port) as client:
        body = {"id": "a", **generate_body("你好 {}", 3)}
        client.send(request_bytes(body, headers=("Connection: close",)))
        raw = await client.rest()
    _, _, stream = raw.partition(b"\r\n\r\n")
    frames = [frame(" 你好"), frame(r" \u007b}"), frame(" 你好")]
    assert stream == b"".join(map(chunk, frames)) + LAST_CHUNK


async def test_the_head_is_exactly_that_of_the_contract() -> None:
    async with serving(deprecation="off") as running:
        response = await post(running.port, generate_body())
    assert response.head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert re.fullmatch("[0-9a-f]{32}", response.headers.pop("requestuuid"))
    assert response.headers.pop("date")
    assert response.headers == {
        **STREAM_HEADERS,
        "transfer-encoding": "chunked",
        "server": "mindie-gateway",
    }


@pytest.mark.parametrize("offer", ["gzip", "gzip, deflate, br, zstd", "*", "identity;q=0, gzip"])
async def test_never_compressed(offer: str) -> None:
    async with serving() as running:
        response = await post(running.port, generate_body(), headers=(f"Accept-Encoding: {offer}",))
    assert "content-encoding" not in response.headers
    assert response.texts == [" one", " two", " one"]


@pytest.mark.parametrize("wish", ["", "Connection: keep-alive", "Connection: close"])
async def test_http_1_0_gets_plain_frames_and_the_end_of_the_connection(wish: str) -> None:
    headers = (wish,) if wish else ()
    async with serving() as running, connection(running.port) as client:
        client.send(request_bytes({"id": "a", **generate_body()}, version="1.0", headers=headers))
        raw = await client.rest()
    head, _, stream = raw.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.0 200 OK\r\n")
    assert b"transfer-encoding" not in head.lower()
    assert b"keep-alive" not in head.lower()
    assert stream == frame(" one") + frame(" two") + frame(" one")


async def test_data_space_is_a_switch() -> None:
    async with serving(data_space=True) as running:
        response = await post(running.port, generate_body(tokens=1))
    assert response.body.startswith(b'data: {"id":')


async def test_the_brace_escape_is_a_switch() -> None:
    async with serving(brace_escape=False) as running:
        response = await post(running.port, {"id": "a", **generate_body("{}", 1)})
    assert response.chunks == [frame(" {}")]


async def test_full_text_is_a_switch() -> None:
    async with serving(full_text=True) as running:
        response = await post(running.port, generate_body("a b", 3))
    assert response.texts == [" a", " a b", " a b a"]


async def test_headers_leave_before_the_first_token() -> None:
    engine = StubEngine(silent)
    async with serving(engine) as running, connection(running.port) as client:
        client.send(request_bytes(generate_body()))
        assert (await client.head()).status == 200
        assert not running.metric("mindie_gateway_time_to_first_token_seconds_count")


async def test_several_tokens_at_once_are_still_one_frame_each() -> None:
    engine = StubEngine(silent)
    async with serving(engine) as running, connection(running.port) as client:
        client.send(request_bytes(generate_body(tokens=100)))
        stream = await only_stream(engine)
        for number in range(1, 50):
            stream.push(token(f" {number}", number))
        stream.push(token(" 50", 50, finish=FinishReason.LENGTH))
        response = await client.response()
    assert response.complete
    assert response.texts == [f" {number}" for number in range(1, 51)]


async def test_what_comes_after_the_finish_is_not_sent() -> None:
    engine = StubEngine(scripted(token("a", finish=FinishReason.END), token("b", 2)))
    async with serving(engine) as running:
        response = await post(running.port, generate_body())
    assert response.complete
    assert response.texts == ["a"]


# Back-pressure: contract §5, "client stops reading".


async def endless(request: EngineRequest) -> AsyncIterator[Token]:
    """Large tokens as fast as the loop allows, up to `max_tokens`."""
    last = request.sampling.max_tokens
    for number in range(1, last + 1):
        await asyncio.sleep(0)
        finish = FinishReason.LENGTH if number == last else None
        yield token(f"{number}:" + "x" * BIG, number, finish=finish)


async def blocked(client: Connection, engine: StubEngine, tokens: int = 1000) -> None:
    """Send a request and do not read, until the gateway waits for this client."""
    client.send(request_bytes(generate_body(tokens=tokens)))
    stream = await only_stream(engine)
    # The reader of tokens lags only when it waits for the socket.
    await eventually(lambda: len(stream._pending) > 20)


async def test_a_slow_reader_loses_no_token() -> None:
    engine = StubEngine(endless)
    async with (
        serving(engine) as running,
        connection(running.port, receive_buffer=4096) as client,
    ):
        await blocked(client, engine, tokens=600)
        await eventually(lambda: not engine.live)
        response = await client.response()
        assert response.complete
        numbers = [text.partition(":")[0] for text in response.texts]
        assert numbers == [str(number) for number in range(1, 601)]
        await running.settled(succeeded=1)


async def test_a_lagging_reader_gets_small_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `full_text` every frame holds everything: 600 of them at once would be megabytes."""
    engine = StubEngine(silent)
    async with (
        serving(engine, full_text=True) as running,
        connection(running.port, receive_buffer=4096) as client,
    ):
        client.send(request_bytes(generate_body(tokens=2000)))
        stream = await only_stream(engine)
        sizes = _observe_writes(monkeypatch)
        for number in range(1, 601):
            stream.push(token("x" * 100, number))
        stream.push(token("", 601, finish=FinishReason.END))
        response = await client.response()
        assert len(response.texts[-1]) == 60_000
    assert len(response.chunks) == 601
    # One batch may exceed the mark by its last frame.
    assert max(sizes) <= 64 * 1024 + 61_000


def _observe_writes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    from proxy.frame_writer import FrameWriter

    sizes: list[int] = []
    send = FrameWriter.send

    async def observed(self: FrameWriter, frames: list[bytes]) -> None:
        sizes.append(sum(map(len, frames)))
        await send(self, frames)

    monkeypatch.setattr(FrameWriter, "send", observed)
    return sizes


async def test_memory_is_bounded_while_a_client_does_not_read() -> None:
    """Whatever the engine makes: what is under the mark, and one batch that may cross it."""
    engine = StubEngine(silent)
    async with (
        serving(engine) as running,
        connection(running.port, receive_buffer=4096) as client,
    ):
        client.send(request_bytes(generate_body(tokens=2000)))
        stream = await only_stream(engine)
        (protocol,) = connections()
        assert protocol.transport is not None
        for number in range(1, 1000):
            stream.push(token("x" * BIG, number))
            await asyncio.sleep(0)
        assert protocol.transport.get_write_buffer_size() <= 2 * HIGH_WATER + BIG + 200
        assert len(stream._pending) > 500


async def test_write_timeout_drops_a_client_that_does_not_read() -> None:
    engine = StubEngine(endless)
    async with (
        serving(engine, write_timeout=0.2) as running,
        connection(running.port, receive_buffer=4096) as client,
    ):
        await blocked(client, engine)
        await running.settled(cancelled=1)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            while True:
                await client.reader.readexactly(1024)


async def test_a_client_that_reads_slowly_is_not_dropped() -> None:
    """Half a megabyte a second: the kernel's megabytes would hide for long that it reads."""
    engine = StubEngine(endless)
    async with (
        serving(engine, write_timeout=1.0) as running,
        connection(running.port, receive_buffer=4096) as client,
    ):
        await blocked(client, engine)
        await client.head()
        for _ in range(70):
            frame_json(await client.chunk())
            await asyncio.sleep(0.03)
        assert running.outcomes == {}


async def test_the_last_chunk_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """The buffer may cross its mark with the final chunk: that wait has its limit as well."""
    from aiohttp import web

    async def stuck(self: web.StreamResponse, data: bytes = b"") -> None:
        await asyncio.Event().wait()

    async with serving(write_timeout=0.05) as running:
        monkeypatch.setattr(web.StreamResponse, "write_eof", stuck)
        response = await post(running.port, generate_body())
        assert not response.complete
        # Its last frame was out: the engine has nothing left to cancel.
        await running.settled(succeeded=1)


async def test_a_broken_stream_closes_without_the_last_chunk_though_the_client_lags() -> None:
    engine = StubEngine(endless)
    async with (
        serving(engine) as running,
        connection(running.port, receive_buffer=4096) as client,
    ):
        await blocked(client, engine)
        stream = next(iter(engine.live.values())).stream
        stream.fail(IncompleteGeneration("broken by the test"))
        response = await client.response()
    assert not response.complete
    _assert_broken(response, "broken by the test")


def _assert_broken(response: RawResponse, message: str) -> None:
    *_, last = response.frames
    assert last["text_output"] == ""
    assert last["err_msg"] == message
    assert last["error_type"] == "Incomplete Generation"


async def test_a_dropped_client_that_never_reads_is_cut_off_in_time() -> None:
    engine = StubEngine(endless)
    async with (
        serving(engine, write_timeout=0.3) as running,
        connection(running.port, receive_buffer=4096) as client,
    ):
        # Full enough to keep the gateway from flushing, not enough to make it wait.
        client.send(request_bytes(generate_body(tokens=2000)))
        stream = await only_stream(engine)
        await eventually(lambda: len(stream._pending) > 20)
        stream.fail(IncompleteGeneration("broken by the test"))
        await eventually(lambda: not connections())
        assert running.outcomes.keys() <= {"failed", "cancelled"}


async def test_nothing_is_left_behind_by_a_dropped_connection() -> None:
    """The guard that would abort a closing connection goes with the connection."""
    engine = StubEngine(silent)
    async with serving(engine, write_timeout=3600) as running:
        async with connection(running.port) as client:
            client.send(request_bytes(generate_body()))
            stream = await only_stream(engine)
            (protocol,) = connections()
            stream.fail(IncompleteGeneration("broken by the test"))
            assert not (await client.response()).complete
        guard = protocol._guard
        assert guard is not None
        await eventually(guard.cancelled)


async def test_an_http_1_0_stream_that_breaks_ends_with_the_error_frame() -> None:
    engine = StubEngine(silent)
    async with serving(engine) as running, connection(running.port) as client:
        client.send(request_bytes(generate_body(), version="1.0"))
        (await only_stream(engine)).fail(IncompleteGeneration("broken by the test"))
        raw = await client.rest()
    body = raw.partition(b"\r\n\r\n")[2]
    assert frame_json(body)["err_msg"] == "broken by the test"


async def test_two_hundred_streams_at_once_each_get_their_own_text() -> None:
    engine = StubEngine()
    async with serving(engine) as running:

        async def one(number: int) -> list[str]:
            text = f"w{number}a w{number}b"
            response = await post(running.port, generate_body(text, 20))
            assert response.complete
            return response.texts

        results = await asyncio.gather(*map(one, range(200)))
        for number, texts in enumerate(results):
            assert texts == [f" w{number}a", f" w{number}b"] * 10
        await running.settled(succeeded=200)


async def test_a_head_request_to_a_post_route_is_no_route() -> None:
    async with serving() as running:
        response = await exchange(running.port, request_bytes(b"", method="HEAD"))
    assert response.status == 404


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.alone
async def test_the_last_bytes_are_not_kept_for_one_who_does_not_read_them(kept: bool) -> None:
    engine = StubEngine(silent)
    async with (
        serving(engine, write_timeout=0.5, keepalive_timeout=0.1) as running,
        connection(running.port, receive_buffer=4096) as client,
    ):
        headers = () if kept else ("Connection: close",)
        client.send(request_bytes(generate_body("a b", 1900), headers=headers))
        stream = await only_stream(engine)
        (protocol,) = connections()
        transport = protocol.transport
        number = 0
        while transport.get_write_buffer_size() < HIGH_WATER // 4:
            stream.push(token("x" * 2000, number))
            number += 1
            await asyncio.sleep(0)
        finish(engine, stream, "end")
        await eventually(lambda: not len(running.gateway.live))
        assert transport.get_write_buffer_size()
        descriptor = transport.get_extra_info("socket").fileno()
        await eventually(lambda: transport.get_extra_info("socket").fileno() != descriptor)


@pytest.mark.alone
async def test_the_last_bytes_are_kept_for_one_who_reads_late() -> None:
    engine = StubEngine(silent)
    async with (
        serving(engine, write_timeout=10.0) as running,
        connection(running.port, receive_buffer=4096) as client,
    ):
        client.send(request_bytes(generate_body("a b", 1900)))
        stream = await only_stream(engine)
        (protocol,) = connections()
        number = 0
        while protocol.transport.get_write_buffer_size() < HIGH_WATER // 4:
            stream.push(token("x" * 2000, number))
            number += 1
            await asyncio.sleep(0)
        finish(engine, stream, "end")
        await eventually(lambda: not len(running.gateway.live))
        response = await client.response()
        assert len(response.frames) == number + 1
        assert response.complete
        # The connection goes on.
        client.send(request_bytes(generate_body()))
        await eventually(lambda: len(engine.submitted) == 2)
