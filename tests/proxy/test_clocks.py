"""The clocks of contract §5: which runs out, what restarts it, what the client sees."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from proxy.clocks import Clock, shorter, watched
from proxy.engines.stream import TokenStream
from proxy.engines.stub import StubEngine, silent
from tests.proxy.test_app import assert_error
from tests.support import (
    RawResponse,
    connection,
    eventually,
    generate_body,
    only_stream,
    post,
    request_bytes,
    serving,
    token,
)
from translators.errors import GenerationTimeout

pytestmark = pytest.mark.usefixtures("workers")

TIMEOUTS = {
    "client timeout": {},
    "server tokenTimeout": {"token_timeout": 0.15},
    "server e2eTimeout": {"e2e_timeout": 0.15},
}


async def timed_out(clock: str, contract: str, tokens: int = 0) -> RawResponse:
    """The answer to a request that gets `tokens` tokens and then no more."""
    engine = StubEngine(silent)
    settings: dict[str, Any] = TIMEOUTS[clock]
    async with (
        serving(engine, contract=contract, **settings) as running,
        connection(running.port) as client,
    ):
        # The client's timeout is in whole seconds.
        client.send(request_bytes(generate_body(details=True, timeout=1)))
        stream = await only_stream(engine)
        for number in range(1, tokens + 1):
            stream.push(token(f" {number}", number))
        response = await client.response()
        if not response.complete:
            assert await client.rest() == b""
        await running.settled(failed=1)
        assert len(engine.cancelled) == 1
        labels = {"status": "500", "error_type": "Incomplete Generation"}
        assert running.metric("mindie_gateway_errors_total", **labels) == 1
    return response


@pytest.mark.parametrize("tokens", [0, 2], ids=["before the first token", "after two"])
@pytest.mark.parametrize("clock", TIMEOUTS)
async def test_documented_an_error_frame_and_a_dropped_connection(clock: str, tokens: int) -> None:
    response = await timed_out(clock, "documented", tokens)
    assert response.status == 200
    assert not response.complete
    *frames, last = response.frames
    assert [frame["text_output"] for frame in frames] == [" 1", " 2"][:tokens]
    assert list(last) == [
        *("id", "model_name", "model_version", "text_output", "details", "prefill_time"),
        *("decode_time", "err_msg", "error_type"),
    ]
    assert last["text_output"] == ""
    assert last["details"]["finish_reason"] == "stop_sequence"
    assert last["details"]["generated_tokens"] == tokens
    assert clock in last["err_msg"]
    assert last["error_type"] == "Incomplete Generation"


@pytest.mark.parametrize("tokens", [0, 2], ids=["before the first token", "after two"])
@pytest.mark.parametrize("clock", TIMEOUTS)
async def test_server_raw_text_and_a_normal_end(clock: str, tokens: int) -> None:
    response = await timed_out(clock, "server", tokens)
    assert response.complete
    assert len(response.chunks) == tokens + 1
    assert response.chunks[-1] == f"Engine callback timeout: {clock}".encode()


async def test_each_token_restarts_the_wait() -> None:
    engine = StubEngine(silent)
    async with (
        serving(engine, token_timeout=0.2) as running,
        connection(running.port) as client,
    ):
        client.send(request_bytes(generate_body()))
        stream = await only_stream(engine)
        started = asyncio.get_running_loop().time()
        for number in range(1, 5):
            await asyncio.sleep(0.1)
            stream.push(token(f" {number}", number))
        response = await client.response()
        lasted = asyncio.get_running_loop().time() - started
    # Four tokens at 0.1 s each, the last of which the full wait follows.
    assert len(response.frames) == 5
    assert lasted >= 0.6


async def test_e2e_counts_from_the_start_of_the_request() -> None:
    """Tokens do not restart it, and what came before the engine counts as well."""

    class SlowToCount(StubEngine):
        async def tokenize(self, text: str) -> list[int]:
            await asyncio.sleep(0.2)
            return [1]

    async with serving(SlowToCount(silent), e2e_timeout=0.1) as running:
        response = await post(running.port, generate_body())
        # It had run out before the engine was asked: a plain answer.
        error = assert_error(response, 500, "Incomplete Generation")
        assert "e2eTimeout" in error
        await running.settled(failed=1)


async def test_the_wait_for_a_token_begins_when_the_request_is_here() -> None:
    raw = request_bytes(generate_body())
    async with serving(token_timeout=0.2) as running, connection(running.port) as client:
        client.send(raw[:-5])
        await asyncio.sleep(0.4)
        client.send(raw[-5:])
        assert (await client.response()).complete
        await running.settled(succeeded=1)


async def test_tokens_do_not_restart_e2e() -> None:
    engine = StubEngine(silent)
    async with (
        serving(engine, e2e_timeout=0.3, token_timeout=0.2) as running,
        connection(running.port) as client,
    ):
        client.send(request_bytes(generate_body(tokens=1000)))
        stream = await only_stream(engine)
        while engine.live:
            stream.push(token(" x"))
            await asyncio.sleep(0.05)
        response = await client.response()
    assert "e2eTimeout" in response.frames[-1]["err_msg"]


async def test_the_shorter_of_the_two_waits_counts() -> None:
    server = Clock("server tokenTimeout", 600)
    assert shorter(Clock("client timeout", 5), server) == Clock("client timeout", 5)
    assert shorter(Clock("client timeout", 600), server) == Clock("client timeout", 600)
    assert shorter(Clock("client timeout", 65535), server) == server


async def test_a_slow_client_is_not_a_slow_engine() -> None:
    """Tokens that nobody has taken yet are no reason to give up: the client's time is another."""
    cancelled = asyncio.Event()
    stream = TokenStream(cancelled.set)
    loop = asyncio.get_running_loop()
    with watched(stream, Clock("server tokenTimeout", 0.02), Clock("e2e", 60.0), loop.time()):
        stream.push(token("a"))
        await asyncio.sleep(0.1)
        assert not cancelled.is_set()
        assert [each.text for each in await anext(stream)] == ["a"]
        with pytest.raises(GenerationTimeout, match=r"tokenTimeout of 0\.02 s"):
            await anext(stream)
    assert cancelled.is_set()


async def test_nothing_is_left_of_a_watch_that_was_not_needed() -> None:
    stream = TokenStream(lambda: None)
    loop = asyncio.get_running_loop()
    with watched(stream, Clock("token", 0.01), Clock("e2e", 0.01), loop.time()):
        stream.push(token("a"))
    await asyncio.sleep(0.03)
    await anext(stream)
    stream.raise_if_failed()


async def test_a_request_that_ends_in_time_is_not_disturbed() -> None:
    async with serving(token_timeout=0.05, e2e_timeout=0.05) as running:
        assert (await post(running.port, generate_body())).complete
        await running.settled(succeeded=1)
        await eventually(lambda: not running.engine.live)
