"""A client that leaves (contract §5): its engine request goes within 1 s, and nothing is an error.

Whenever it leaves, however it leaves, it is counted as cancelled, or as succeeded when its
last frame had gone out.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Any

import pytest

from proxy.departure import has_left
from proxy.engines.stub import StubEngine, silent
from tests.support import (
    Connection,
    RunningGateway,
    connection,
    connections,
    eventually,
    finish,
    generate_body,
    get,
    get_bytes,
    only_stream,
    request_bytes,
    serving,
    token,
)
from translators.errors import IncompleteGeneration

WAYS = ("close", "reset", "half_close")
NOTICED = 1.0
"""Seconds within which the engine's request must be gone."""


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    """How the client leaves."""
    return str(request.param)


async def leave(client: Connection, way: str) -> None:
    """Leave, and let nothing be logged about it that an operator would look at."""
    await {"close": client.close, "reset": client.reset, "half_close": client.half_close}[way]()


async def gone(running: RunningGateway, **outcomes: int) -> None:
    async with asyncio.timeout(NOTICED):
        await running.settled(**outcomes)


@pytest.fixture(autouse=True)
def _nothing_is_logged(caplog: pytest.LogCaptureFixture) -> Any:
    yield
    loud = [r for r in caplog.get_records("call") if r.levelno >= logging.WARNING]
    assert not loud, [r.getMessage() for r in loud]


async def test_while_sending_its_body(way: str) -> None:
    async with serving() as running, connection(running.port) as client:
        client.send(request_bytes(generate_body())[:-3])
        name = "mindie_gateway_requests_in_flight"
        await eventually(lambda: running.metric(name) == 1)
        await leave(client, way)
        await gone(running, cancelled=1)
        assert not running.engine.submitted


async def test_while_its_prompt_is_tokenized(way: str) -> None:
    class NeverCounts(StubEngine):
        counting = asyncio.Event()

        async def tokenize(self, text: str) -> list[int]:
            self.counting.set()
            await asyncio.Event().wait()
            return []

    engine = NeverCounts()
    engine.counting = asyncio.Event()
    async with serving(engine) as running, connection(running.port) as client:
        client.send(request_bytes(generate_body()))
        await engine.counting.wait()
        await leave(client, way)
        await gone(running, cancelled=1)
        assert not engine.submitted


async def test_while_the_engine_takes_the_request(way: str) -> None:
    engine = StubEngine(silent)
    engine.submit_gate.clear()
    async with serving(engine) as running, connection(running.port) as client:
        client.send(request_bytes(generate_body()))
        await eventually(lambda: engine.submitted)
        await leave(client, way)
        await gone(running, cancelled=1)
        engine.submit_gate.set()
        assert not engine.live


async def test_while_its_request_is_queued(way: str) -> None:
    """The headers are out, the first token is not: nothing is written that could fail."""
    engine = StubEngine(silent)
    async with serving(engine) as running, connection(running.port) as client:
        client.send(request_bytes(generate_body()))
        await only_stream(engine)
        await leave(client, way)
        await gone(running, cancelled=1)
        assert engine.cancelled == [engine.submitted[0].request_id]
        assert not running.metric("mindie_gateway_generated_tokens_total")


async def test_in_the_middle_of_the_answer(way: str) -> None:
    engine = StubEngine(silent)
    async with serving(engine) as running, connection(running.port) as client:
        client.send(request_bytes(generate_body()))
        stream = await only_stream(engine)
        stream.push(token("a"))
        await client.head()
        assert b'"a"' in await client.chunk()
        await leave(client, way)
        await gone(running, cancelled=1)
        assert len(engine.cancelled) == 1
        assert running.metric("mindie_gateway_generated_tokens_total") == 1


async def test_while_tokens_go_on_coming(way: str) -> None:
    engine = StubEngine(silent)
    async with serving(engine) as running, connection(running.port) as client:
        client.send(request_bytes(generate_body(tokens=2000)))
        stream = await only_stream(engine)
        await client.head()
        await leave(client, way)
        deadline = asyncio.get_running_loop().time() + NOTICED
        while engine.live:
            assert asyncio.get_running_loop().time() < deadline
            stream.push(token("a"))
            await asyncio.sleep(0.001)
        await gone(running, cancelled=1)


async def test_while_it_does_not_read(way: str) -> None:
    """A reset is seen at once; an orderly end by a client that does not read only counts
    when its time to read is over, because what was sent to it may still be wanted."""
    engine = StubEngine(silent)
    async with (
        serving(engine, write_timeout=0.5) as running,
        connection(running.port, receive_buffer=4096) as client,
    ):
        client.send(request_bytes(generate_body(tokens=2000)))
        stream = await only_stream(engine)
        for number in range(1000):
            stream.push(token("x" * 10_000, number))
        await eventually(lambda: connections()[0].writing_paused)
        await leave(client, way)
        await gone(running, cancelled=1)


async def test_after_the_last_byte(way: str) -> None:
    async with serving() as running, connection(running.port) as client:
        assert (await client.ask(request_bytes(generate_body()))).complete
        await leave(client, way)
        await gone(running, succeeded=1)
        assert not running.engine.cancelled
        await eventually(lambda: not connections())


async def test_with_the_last_token_on_its_way(way: str) -> None:
    engine = StubEngine(silent)
    async with serving(engine) as running, connection(running.port) as client:
        client.send(request_bytes(generate_body()))
        stream = await only_stream(engine)
        await client.head()
        finish(engine, stream, "a")
        await leave(client, way)
        await eventually(lambda: running.outcomes)
        assert running.outcomes in ({"succeeded": 1}, {"cancelled": 1})
        await gone(running, **running.outcomes)


async def test_while_its_stream_breaks(way: str) -> None:
    """It is gone before the error frame can be written: the failure still counts as one."""
    engine = StubEngine(silent)
    async with serving(engine) as running, connection(running.port) as client:
        client.send(request_bytes(generate_body()))
        stream = await only_stream(engine)
        await client.head()
        stream.fail(IncompleteGeneration("broken by the test"))
        await leave(client, way)
        await gone(running, failed=1)


async def test_as_soon_as_it_has_asked(way: str) -> None:
    """The departure may arrive with the request: no such client gets lost in the books."""
    engine = StubEngine(silent)
    async with serving(engine) as running:
        for _ in range(20):
            async with connection(running.port) as client:
                client.send(request_bytes(generate_body()))
                await client.drain()
                await leave(client, way)
        # Whoever is answered after them came after them: all have been met by now.
        assert (await get(running.port, "/v2/health/live")).status == 200
        await eventually(lambda: not connections())
        received = "mindie_gateway_requests_received_total"
        await eventually(lambda: running.metric(received) == sum(running.outcomes.values()))
        assert running.outcomes.keys() <= {"cancelled"}
        await gone(running, **running.outcomes)


async def test_five_hundred_at_once() -> None:
    engine = StubEngine(silent)
    async with serving(engine, max_requests=500) as running:
        clients = [connection(running.port) for _ in range(500)]
        for client in clients:
            (await client.__aenter__()).send(request_bytes(generate_body()))
        await eventually(lambda: len(engine.live) == 500)
        for client in clients:
            await client.__aexit__(None, None, None)
        await gone(running, cancelled=500)
        assert len(engine.cancelled) == 500


async def test_the_freed_place_is_taken_by_the_next() -> None:
    engine = StubEngine(silent)
    async with serving(engine, max_requests=1) as running:
        for number in range(1, 4):
            async with connection(running.port) as client:
                client.send(request_bytes(generate_body()))
                await only_stream(engine)
            await gone(running, cancelled=number)


async def test_a_client_that_leaves_takes_no_other_with_it() -> None:
    """Both carry the same id (contract §2)."""
    engine = StubEngine(silent)
    body = {"id": "same", **generate_body(tokens=1)}
    async with serving(engine) as running, connection(running.port) as stays:
        stays.send(request_bytes(body))
        stream = await only_stream(engine)
        async with connection(running.port) as leaves:
            leaves.send(request_bytes(body))
            await eventually(lambda: len(engine.live) == 2)
        await eventually(lambda: len(engine.live) == 1)
        finish(engine, stream, "a")
        assert (await stays.response()).texts == ["a"]
        await running.settled(succeeded=1, cancelled=1)


# What sends ahead cannot hide that it has left.


async def test_many_requests_sent_ahead_do_not_hide_a_departure() -> None:
    engine = StubEngine(silent)
    async with serving(engine) as running:
        async with connection(running.port) as client:
            client.send(request_bytes(generate_body()) * 40)
            await only_stream(engine)
        await gone(running, cancelled=1)
        assert len(engine.submitted) == 1


async def test_a_large_body_sent_ahead_does_not_hide_a_departure() -> None:
    engine = StubEngine(silent)
    async with serving(engine) as running:
        async with connection(running.port) as client:
            client.send(request_bytes(generate_body()))
            await only_stream(engine)
            client.send(request_bytes(b" " * 1_000_000))
            (protocol,) = connections()
            await eventually(lambda: protocol._reading_paused)
        await gone(running, cancelled=1)


async def test_a_client_that_sent_ahead_and_stays_is_served() -> None:
    """It is looked at while it is not read, and found to be there."""
    engine = StubEngine(silent)
    async with serving(engine) as running, connection(running.port) as client:
        client.send(request_bytes(generate_body()))
        stream = await only_stream(engine)
        client.send(request_bytes({**generate_body(), "padding": "x" * 1_000_000}))
        (protocol,) = connections()
        await eventually(lambda: protocol._reading_paused)
        looked = protocol._look
        await eventually(lambda: protocol._look is not looked)
        finish(engine, stream, "a")
        assert (await client.response()).texts == ["a"]
        finish(engine, await only_stream(engine), "b")
        assert (await client.response()).texts == ["b"]


async def test_a_client_that_left_after_a_large_body_is_noticed() -> None:
    engine = StubEngine(silent)
    async with serving(engine) as running:
        async with connection(running.port) as client:
            client.send(request_bytes({**generate_body(), "padding": "x" * 1_000_000}))
            await only_stream(engine)
        await gone(running, cancelled=1)


async def test_a_departure_is_told_from_a_client_that_is_still_there() -> None:
    async with serving() as running:
        async with connection(running.port) as client:
            await client.ask(get_bytes("/v2/health/live"))
            (protocol,) = connections()
            transport = protocol.transport
            assert transport is not None
            transport.pause_reading()
            assert not has_left(transport)
        await eventually(lambda: has_left(transport))


async def test_a_connection_that_is_no_tcp_is_taken_for_there() -> None:
    class Unix(asyncio.BaseTransport):
        def get_extra_info(self, name: str, default: Any = None) -> Any:
            return ours

    ours, theirs = socket.socketpair()
    theirs.close()
    with ours:
        assert not has_left(Unix())
        assert not has_left(asyncio.BaseTransport())
