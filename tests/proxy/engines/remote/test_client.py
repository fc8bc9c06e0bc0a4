"""HTTP with one server, where `test_faults` does not look."""

from __future__ import annotations

import asyncio
import gc
import time
from contextlib import suppress
from email.utils import formatdate

import orjson
import pytest

from proxy.engines.remote.client import (
    AnswerTooLargeError,
    Client,
    ConnectionFailedError,
    RefusedError,
    seconds_of,
)
from proxy.engines.remote.message import LargeBody
from tests.fake_vllm import EVENT_STREAM, Call, FakeVllm, fake_vllm
from tests.proxy.engines.remote.sidecar import sidecar
from tests.support import exchange, generate_body, request_bytes
from translators.errors import IncompleteGeneration


def client_of(server: FakeVllm, path: str = "", **options: str) -> Client:
    return Client(server.url + path, api_key=options.get("api_key"), connect_timeout=1.0)


async def test_the_key_goes_along_and_compression_is_not_asked_for() -> None:
    async with fake_vllm() as server:
        client = client_of(server, api_key="s3cret")
        document = {"model": "smol", "prompt": [1], "max_tokens": 2, "min_p": 0.0}
        (await client.stream("/v1/completions", document)).close()
        (call,) = server.calls
        assert call.headers["authorization"] == "Bearer s3cret"
        assert call.headers["accept-encoding"] == "identity"
        await client.close()


async def test_a_path_in_the_url_comes_first_and_names_show_no_more() -> None:
    async with fake_vllm() as server:
        client = client_of(server, "/base/")
        with pytest.raises(Exception, match="refuses"):
            await client.ask("GET", "/version", within=1)
        assert server.asked == ["/base/version"]
        assert client.name == f"{server.url}/base/"
        await client.close()


async def test_nobody_there() -> None:
    async with fake_vllm() as server:
        client = client_of(server)
    with pytest.raises(ConnectionFailedError) as caught:
        await client.ask("GET", "/health", within=1)
    assert not caught.value.reached
    await client.close()


async def test_a_kept_connection_that_is_dead_is_not_the_servers_last_word() -> None:
    """vLLM 0.23 closes a connection a moment after some refusals, without saying so before."""
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 400 No\r\nContent-Length: 2\r\n\r\n{}")
        with suppress(asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
        # The library itself asks again only for what has no body, as GET.
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    client = Client(url, api_key=None, connect_timeout=1.0)
    for asked in (1, 2, 3):
        with pytest.raises(RefusedError):
            await client.ask("POST", "/tokenize", within=5)
        # The first over one of its own; then the kept one dies, and a new one answers.
        assert connections == asked
    with pytest.raises(ConnectionFailedError) as caught:
        await client.ask("POST", "/tokenize", within=5, fresh=False)
    assert caught.value.reached
    await client.close()
    server.close()


async def test_answers_are_bounded_in_size_and_time() -> None:
    async with fake_vllm(metrics="x" * 5000) as server:
        client = client_of(server)
        assert len(await client.ask("GET", "/metrics", within=1, limit=5000)) == 5000
        with pytest.raises(AnswerTooLargeError):
            await client.ask("GET", "/metrics", within=1, limit=4999)

        async def silent(call: Call) -> None:
            await call.send(EVENT_STREAM)
            await call.gone.wait()

        server.answer = silent
        document = {"max_tokens": 2}
        with pytest.raises(IncompleteGeneration, match="in time"):
            await client.ask("POST", "/v1/completions", document, within=0.1)
        await asyncio.wait_for(server.calls[0].gone.wait(), 1)
        await client.close()


async def test_a_large_question_is_sent_whole() -> None:
    async with fake_vllm() as server:
        client = client_of(server)
        prompt = "word " * 500_000
        document = {"prompt": prompt, "model": "smol", "max_tokens": 2}
        (await client.stream("/v1/completions", document)).close()
        assert server.calls[0].document["prompt"] == prompt
        await client.close()


async def test_connections_that_break_leave_no_complaint(caplog: pytest.LogCaptureFixture) -> None:
    async with fake_vllm() as server:
        client = client_of(server)
        for _ in range(3):
            await client.ask("GET", "/version", within=1)
        assert server.connections == 1
    await client.close()
    gc.collect()
    assert not caplog.records


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, 1),
        ("0", 1),
        ("5", 5),
        ("99999", 3600),
        ("-3", 1),
        ("1.5", 1),
        ("", 1),
        ("Wed, 99 Foo 2015 07:28:00 GMT", 1),
    ],
)
def test_retry_after_is_a_number_of_seconds_within_reason(header: str | None, seconds: int) -> None:
    assert seconds_of(header) == seconds


def test_retry_after_may_be_a_date() -> None:
    assert 95 <= seconds_of(formatdate(time.time() + 100, usegmt=True)) <= 100


@pytest.mark.parametrize("given", [True, False])
async def test_the_trace_of_a_request_goes_on_to_the_server(given: bool) -> None:
    trace = "0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331"
    headers = (f"b3: {trace}-1",) if given else ()
    async with sidecar() as opened:
        before = len(opened.server.calls)
        raw = request_bytes(generate_body(), headers=headers)
        assert (await exchange(opened.port, raw)).status == 200
        sent = [call.headers.get("traceparent") for call in opened.server.calls[before:]]
    assert (f"00-{trace}-01" in sent) is given
    assert given or not any(sent)


@pytest.mark.parametrize("large", [True, False])
async def test_trace_headers_go_with_either_kind_of_body(large: bool) -> None:
    document = {"model": "smol", "prompt": [1], "max_tokens": 2, "min_p": 0.0}
    body = LargeBody((orjson.dumps(document),)) if large else document
    async with fake_vllm() as server:
        client = client_of(server)
        (await client.stream("/v1/completions", body, {"traceparent": "00-a-b-01"})).close()
        (call,) = server.calls
        assert call.headers["traceparent"] == "00-a-b-01"
        assert call.headers["content-type"] == "application/json"
        await client.close()
