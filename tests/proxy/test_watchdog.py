"""A hang is seen by the tokens that do not come, whatever the traffic looks like."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from proxy.engines.base import EngineRequest
from proxy.engines.stream import TokenStream
from proxy.engines.stub import StubEngine
from proxy.live import LiveRequests
from proxy.watchdog import Watchdog
from tests.support import (
    RunningGateway,
    connection,
    eventually,
    generate_body,
    get,
    post,
    request_bytes,
    serving,
    token,
)
from translators.tokens import FinishReason, Token

pytestmark = pytest.mark.logs_errors


class Stream:
    """A live request whose tokens come when the test says."""

    def __init__(self) -> None:
        self.owed = True
        self.last_token = 0.0

    def stop(self) -> None: ...

    def fail(self, error: Exception) -> None: ...

    def close(self) -> None: ...


async def no_token(seconds: float) -> bool:
    raise AssertionError


@pytest.fixture
def live() -> LiveRequests:
    return LiveRequests()


@pytest.fixture
def dog(live: LiveRequests) -> Watchdog:
    return Watchdog(live, 10, no_token)


def test_no_work_is_no_hang(dog: Watchdog) -> None:
    for now in (100, 200, 300):
        dog.look(now)
    assert not dog.stalled


def test_work_without_a_token_is_a_hang_after_the_timeout(
    dog: Watchdog, live: LiveRequests
) -> None:
    with live.tracked("a", Stream()):
        dog.look(100)
        dog.look(109.9)
        assert not dog.stalled
        dog.look(110)
        assert dog.stalled


def test_new_requests_do_not_hide_a_hang(dog: Watchdog, live: LiveRequests) -> None:
    """Clients come, give up and come again: each is young, the hang is old."""
    for now in range(100, 112):
        with live.tracked("a", Stream()):
            dog.look(now)
    assert dog.stalled


def test_a_token_of_any_request_is_progress(dog: Watchdog, live: LiveRequests) -> None:
    flows, waits = Stream(), Stream()
    with live.tracked("a", flows), live.tracked("b", waits):
        for now in range(100, 200):
            flows.last_token = now
            dog.look(now)
        assert not dog.stalled
        dog.look(209.5)
        assert dog.stalled


def test_the_last_token_of_one_that_has_ended_counts(dog: Watchdog, live: LiveRequests) -> None:
    ends, waits = Stream(), Stream()
    with live.tracked("b", waits):
        with live.tracked("a", ends):
            dog.look(100)
            ends.last_token = 109
        dog.look(112)
        assert not dog.stalled
        dog.look(119)
        assert dog.stalled


def test_a_pause_between_two_works_starts_the_clock_anew(dog: Watchdog, live: LiveRequests) -> None:
    for now in (100, 200):
        with live.tracked("a", Stream()):
            dog.look(now)
            dog.look(now + 9)
        dog.look(now + 9.5)
    assert not dog.stalled


def test_a_reader_that_is_slow_is_no_hang(dog: Watchdog, live: LiveRequests) -> None:
    done = Stream()
    done.owed = False
    with live.tracked("a", done):
        for now in (100, 200):
            dog.look(now)
    assert not dog.stalled


def test_the_next_token_ends_it(dog: Watchdog, live: LiveRequests) -> None:
    stream = Stream()
    with live.tracked("a", stream):
        dog.look(100)
        dog.look(110)
        assert dog.stalled
        dog.look(115)
        assert dog.stalled
        stream.last_token = 116
        dog.look(117)
        assert not dog.stalled
        dog.look(125.9)
        assert not dog.stalled
        dog.look(127.1)
        assert dog.stalled


async def test_a_stream_tells_what_the_watchdog_asks() -> None:
    stream = TokenStream(lambda: None)
    assert stream.owed
    assert stream.last_token == 0
    await asyncio.sleep(0.01)
    before = asyncio.get_running_loop().time()
    stream.push(token("a"))
    await asyncio.sleep(0.01)
    assert stream.last_token >= before - 0.01
    stream.push(token("b", finish=FinishReason.LENGTH))
    assert not stream.owed


# The whole of it.


class Hanging(StubEngine):
    """Makes tokens, or none while it hangs."""

    def __init__(self) -> None:
        super().__init__(self._play_when_allowed)
        self.works = asyncio.Event()

    async def _play_when_allowed(self, request: EngineRequest) -> AsyncIterator[Token]:
        await self.works.wait()
        for number in range(request.sampling.max_tokens):
            last = number + 1 == request.sampling.max_tokens
            yield token("x", finish=FinishReason.LENGTH if last else None)


async def ready(running: RunningGateway) -> tuple[int, bytes]:
    response = await get(running.port, "/v2/health/ready")
    return response.status, response.body


async def test_a_hang_shows_in_readiness_and_in_a_metric_and_not_in_liveness() -> None:
    engine = Hanging()
    async with serving(engine, progress_timeout=0.2) as running, connection(running.port) as client:
        watching = asyncio.create_task(running.gateway.watchdog.run())
        client.send(request_bytes(generate_body()))
        await client.head()
        await eventually(lambda: running.gateway.watchdog.stalled)
        assert await ready(running) == (503, b'{"message":"the engine makes no progress"}')
        assert (await get(running.port, "/v2/health/live")).status == 200
        assert running.metric("mindie_gateway_engine_stalled") == 1
        assert running.metric("mindie_gateway_ready") == 0
        assert (await post(running.port, generate_body())).status == 503
        engine.works.set()
        for _ in range(3):
            assert await client.chunk()
        await eventually(lambda: not running.gateway.watchdog.stalled)
        assert (await ready(running))[0] == 200
        assert running.metric("mindie_gateway_engine_stalled") == 0
        watching.cancel()


async def test_with_nobody_left_a_probe_finds_out_that_it_is_over() -> None:
    engine = Hanging()
    async with serving(engine, progress_timeout=0.2) as running:
        watching = asyncio.create_task(running.gateway.watchdog.run())
        async with connection(running.port) as client:
            client.send(request_bytes(generate_body()))
            await client.head()
            await eventually(lambda: running.gateway.watchdog.stalled)
        await eventually(lambda: len(running.gateway.live) == 0)
        # Probes fail, one after the other: it stays as it is.
        await eventually(lambda: len(engine.submitted) >= 4)
        assert (await ready(running))[0] == 503
        engine.works.set()
        await eventually(lambda: not running.gateway.watchdog.stalled)
        assert (await post(running.port, generate_body())).status == 200
        watching.cancel()
