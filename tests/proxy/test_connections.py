"""Slow, idle and too many connections: what they cost, and whom they keep out."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from proxy.connections import Connections
from proxy.engines.stub import StubEngine, silent
from proxy.server import allow_open_files
from proxy.settings import Settings
from tests.support import (
    STREAM_PATH,
    Connection,
    connection,
    connections,
    eventually,
    generate_body,
    get_bytes,
    post,
    request_bytes,
    serving,
)

LIVE = get_bytes("/v2/health/live")


class Socket:
    """A connection for the bound; remembers whether it had to give way."""

    def __init__(self) -> None:
        self.gone = False

    def give_way(self) -> None:
        self.gone = True


def test_the_one_that_has_waited_longest_makes_room() -> None:
    gone: list[None] = []
    bound = Connections(3, lambda: gone.append(None))
    first, second, third, fourth, fifth = (Socket() for _ in range(5))
    for each in (first, second, third):
        assert bound.opened(each)
    bound.answers(first)
    bound.waits(first)
    bound.answers(second)
    assert bound.opened(fourth)
    assert (first.gone, second.gone, third.gone) == (False, False, True)
    assert bound.opened(fifth)
    assert (first.gone, second.gone) == (True, False)
    assert len(bound) == 3
    assert len(gone) == 2


def test_where_all_are_answering_nobody_makes_room() -> None:
    bound = Connections(2, lambda: None)
    busy = [Socket(), Socket()]
    for each in busy:
        assert bound.opened(each)
        bound.answers(each)
    assert not bound.opened(Socket())
    bound.closed(busy[0])
    assert bound.opened(Socket())
    assert not any(each.gone for each in busy)


def test_a_connection_that_gave_way_or_closed_is_counted_no_more() -> None:
    bound = Connections(1, lambda: None)
    first, second = Socket(), Socket()
    bound.opened(first)
    bound.opened(second)
    for late in (bound.answers, bound.waits, bound.closed):
        late(first)
    assert len(bound) == 1
    bound.closed(second)
    assert len(bound) == 0


# Deadlines.


async def seconds_until_closed(client: Connection) -> float:
    started = time.perf_counter()
    assert await client.rest() == b""
    return time.perf_counter() - started


@pytest.mark.parametrize("sent", [b"", b"POST /v2/mod", b"GET / HTTP/1.1\r\nHost: a\r\n"])
async def test_a_head_that_does_not_come_ends_the_connection(sent: bytes) -> None:
    async with serving(head_timeout=0.2) as running, connection(running.port) as client:
        client.send(sent)
        assert 0.15 < await seconds_until_closed(client) < 3


async def test_a_head_that_trickles_has_no_more_time() -> None:
    async with serving(head_timeout=0.5) as running, connection(running.port) as client:
        started = time.perf_counter()
        trickling = asyncio.create_task(trickle(client, b"GET / HTTP/1.1\r\nX-Slow: ", 0.05))
        assert await client.rest() == b""
        assert 0.4 < time.perf_counter() - started < 3
        trickling.cancel()


async def trickle(client: Connection, head: bytes, pause: float) -> None:
    client.send(head)
    for _ in range(1000):
        await asyncio.sleep(pause)
        client.send(b"x")


async def test_the_next_head_on_a_connection_has_the_same_deadline() -> None:
    async with serving(head_timeout=0.3) as running, connection(running.port) as client:
        assert (await client.ask(LIVE)).status == 200
        await asyncio.sleep(0.4)
        # Idle is no head; the clock runs from the first byte.
        assert (await client.ask(LIVE)).status == 200
        client.send(b"GET /v2")
        assert 0.2 < await seconds_until_closed(client) < 3


async def test_an_idle_connection_is_closed_in_its_own_time() -> None:
    async with (
        serving(head_timeout=5, keepalive_timeout=0.3) as running,
        connection(running.port) as client,
    ):
        assert (await client.ask(LIVE)).status == 200
        assert 0.2 < await seconds_until_closed(client) < 3


async def test_an_answer_takes_as_long_as_it_takes() -> None:
    engine = StubEngine(silent)
    async with (
        serving(engine, head_timeout=0.1, keepalive_timeout=0.1) as running,
        connection(running.port) as client,
    ):
        client.send(request_bytes(generate_body()))
        assert (await client.head()).status == 200
        client.send(b"GET /v2")
        await asyncio.sleep(0.4)
        assert len(engine.live) == 1
        assert len(running.gateway.connections) == 1


async def test_a_slow_body_has_its_own_deadline() -> None:
    async with (
        serving(head_timeout=0.1, body_timeout=0.5) as running,
        connection(running.port) as client,
    ):
        client.send(request_bytes(b"{" + b" " * 1000)[:-900])
        response = await client.response()
        assert response.status == 400
        assert "did not arrive within 0.5 s" in response.json["error"]


# The bound on their number.


async def test_idle_connections_make_room_for_new_ones() -> None:
    async with serving(max_connections=3) as running, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connection(running.port)) for _ in range(6)]
        await eventually(lambda: len(connections()) == 3)
        assert [await client.rest() for client in clients[:3]] == [b"", b"", b""]
        for client in clients[3:]:
            assert (await client.ask(LIVE)).status == 200
        text = running.gateway.metrics.render()
        assert b"mindie_gateway_connections 3.0" in text
        assert b"mindie_gateway_connections_evicted_total 3.0" in text


async def test_a_body_that_is_waited_for_makes_room_and_an_answer_does_not() -> None:
    engine = StubEngine(silent)
    async with serving(engine, max_connections=2) as running, AsyncExitStack() as stack:
        streams = await stack.enter_async_context(connection(running.port))
        streams.send(request_bytes(generate_body()))
        await streams.head()
        uploads = await stack.enter_async_context(connection(running.port))
        uploads.send(request_bytes(b"{" + b" " * 1000)[:-900])
        await asyncio.sleep(0.1)
        assert (await post(running.port, generate_body(), "/nowhere")).status == 404
        assert await uploads.rest() == b""
        assert len(engine.live) == 1


async def test_where_all_are_answering_the_next_is_turned_away() -> None:
    engine = StubEngine(silent)
    async with serving(engine, max_connections=2) as running, AsyncExitStack() as stack:
        for _ in range(2):
            client = await stack.enter_async_context(connection(running.port))
            client.send(request_bytes(generate_body()))
            await client.head()
        for _ in range(3):
            async with connection(running.port) as late:
                response = await late.ask(request_bytes(generate_body()))
                assert response.status == 503
                assert response.headers["retry-after"] == "1"
                assert response.headers["connection"] == "close"
                assert len(response.headers["requestuuid"]) == 32
                assert response.json == {
                    "error": "too many connections at once",
                    "error_type": "Service Unavailable",
                }
                assert await late.rest() == b""
        assert len(engine.live) == 2
        await client.close()
        await eventually(lambda: len(running.gateway.connections) == 1)
        assert (await post(running.port, generate_body(), "/nowhere")).status == 404


# A thousand at once.


@pytest.fixture
def file_limit() -> Iterator[tuple[int, int]]:
    """The limits on open files; put back at the end."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield soft, hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def many_files(file_limit: tuple[int, int]) -> None:
    """Both ends of two thousand connections are in this process."""
    allow_open_files(2000)


def test_the_limit_on_open_files_is_raised_as_far_as_it_goes(
    file_limit: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    _, hard = file_limit
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    allow_open_files(100)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (1124, hard)
    assert not caplog.records
    allow_open_files(10)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (1124, hard)
    allow_open_files(hard)
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    assert f"{hard} connections want {hard + 1024}" in caplog.text


HEAD = b"POST " + STREAM_PATH.encode() + b" HTTP/1.1\r\nHost: x\r\nX-Slow: "
BODY = request_bytes(b"{" + b" " * 100_000)[:-99_999]


@asynccontextmanager
async def attack(port: int, opening: bytes, count: int = 1000) -> AsyncIterator[None]:
    """`count` connections that each send a byte now and then, and come again when dropped."""

    async def one() -> None:
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(opening)
                while not reader.at_eof():
                    await asyncio.sleep(0.5)
                    writer.write(b" " if opening else b"")
            await asyncio.sleep(1)

    tasks = [asyncio.create_task(one()) for _ in range(count)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


@pytest.mark.timeout(240)
@pytest.mark.usefixtures("many_files")
@pytest.mark.parametrize("opening", [b"", HEAD, BODY], ids=["idle", "slow-head", "slow-body"])
@pytest.mark.parametrize("limit", [4096, 300], ids=["room-for-all", "too-many"])
async def test_slow_clients_keep_nobody_else_out(opening: bytes, limit: int) -> None:
    async with serving(max_connections=limit, head_timeout=30, body_timeout=30) as running:
        async with attack(running.port, opening):
            bound = running.gateway.connections
            await eventually(lambda: len(bound) >= min(limit, 1000), lambda: len(bound), within=60)
            served = [await asks(running.port) for _ in range(200)]
        assert sum(served) >= 198
        assert running.gateway.admission.in_use == 0
        assert len(running.gateway.connections) <= limit


async def asks(port: int) -> bool:
    """Whether a normal client on a new connection is served whole."""
    try:
        async with asyncio.timeout(5):
            response = await post(port, generate_body())
    except (OSError, EOFError, TimeoutError):
        return False
    return response.status == 200 and response.complete


async def test_a_shutdown_that_gave_up_waiting_for_a_handler_logs_no_error() -> None:
    """The log of each test must stay without errors: see conftest."""
    async with serving() as running, connection(running.port) as client:
        client.send(request_bytes(b"{" + b" " * 1000)[:-900])
        await eventually(lambda: running.gateway.bodies.in_use)
        (protocol,) = connections()
        waiter = asyncio.get_running_loop().create_future()
        waiter.cancel()
        protocol._handler_waiter = waiter
        await client.reset()
        await eventually(lambda: not connections())
        await running.settled(cancelled=1)


# The memory of bodies.


async def test_bodies_together_take_no_more_than_their_memory() -> None:
    async with (
        serving(body_limit=100_000, body_memory=250_000) as running,
        AsyncExitStack() as stack,
    ):
        for count in (1, 2):
            client = await stack.enter_async_context(connection(running.port))
            client.send(request_bytes(b" " * 100_000)[:-1])
            await eventually(lambda count=count: running.gateway.bodies.in_use > count * 99_000)
        refused = await post(running.port, b" " * 100_000)
        assert refused.status == 503
        assert refused.headers["retry-after"] == "1"
        assert refused.json["error"] == "too many large request bodies at once"
        # What is small still fits.
        assert (await post(running.port, generate_body())).status == 200
        await client.close()
        await eventually(lambda: running.gateway.bodies.in_use < 101_000)
        assert (await post(running.port, b" " * 100_000)).status == 422


async def test_a_body_counts_until_its_request_ends() -> None:
    engine = StubEngine(silent)
    async with serving(engine) as running:
        body = request_bytes(generate_body("word " * 100))
        async with connection(running.port) as client:
            client.send(body)
            await client.head()
            held = running.gateway.bodies.in_use
            assert 500 < held < len(body)
            assert b"mindie_gateway_body_bytes %d.0" % held in running.gateway.metrics.render()
        await eventually(lambda: running.gateway.bodies.in_use == 0)


def test_memory_that_holds_no_whole_body_is_refused() -> None:
    sizes: dict[str, Any] = {"body_limit": 2000, "body_memory": 1999}
    with pytest.raises(ValueError, match="body_memory holds no body of body_limit bytes"):
        Settings(**sizes)
