"""Health in all its spellings: the gateway's state, its engine, and one real token on demand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from proxy.engines.base import EngineRequest
from proxy.engines.stub import StubEngine, silent
from proxy.gateway import State
from tests.support import (
    MODEL,
    connection,
    eventually,
    exchange,
    generate_body,
    get,
    get_bytes,
    post,
    request_bytes,
    serving,
    token,
)
from translators.errors import IncompleteGeneration, ServiceUnavailable
from translators.tokens import Token

READY = request_bytes(b"", "/v2/health/ready", method="GET")
LIVE = request_bytes(b"", "/v2/health/live", method="GET")
BODY = {"text_input": "one two", "parameters": {"max_new_tokens": 2}}


async def test_tokens_of_clients_show_that_a_full_engine_works() -> None:
    """Its places are all taken, so that the probe's own request waits for one."""
    gates = [asyncio.Event(), asyncio.Event()]

    async def one_token_each(request: EngineRequest) -> AsyncIterator[Token]:
        if request.text == "Hello":
            await asyncio.Event().wait()
        for gate in gates:
            await gate.wait()
            yield token("x")
        await asyncio.Event().wait()

    async with (
        serving(StubEngine(one_token_each)) as running,
        connection(running.port) as client,
        connection(running.port) as prober,
    ):
        client.send(request_bytes(generate_body()))
        gates[0].set()
        await client.head()
        await client.chunk()
        # A token from before the probe shows nothing.
        assert (await get(running.port, "/health/timed-1")).status == 503
        prober.send(get_bytes("/health/timed-30"))
        await eventually(lambda: len(running.engine.submitted) == 3)
        gates[1].set()
        assert (await prober.response()).status == 200
        await eventually(lambda: len(running.engine.live) == 1)


async def test_an_engine_that_is_away_is_not_ready_and_may_come_back() -> None:
    engine = StubEngine()
    async with serving(engine) as running:
        assert (await exchange(running.port, READY)).status == 200
        assert running.metric("mindie_gateway_ready") == 1

        engine.available = False
        ready = await exchange(running.port, READY)
        refused = await post(running.port, BODY)
        assert (ready.status, refused.status) == (503, 503)
        assert ready.json == {"message": "the engine cannot be reached"}
        assert refused.json["error_type"] == "Service Unavailable"
        assert refused.headers["retry-after"] == "1"
        assert (await exchange(running.port, LIVE)).status == 200
        assert running.metric("mindie_gateway_ready") == 0

        engine.available = True
        assert (await exchange(running.port, READY)).status == 200
        assert (await post(running.port, BODY)).status == 200


SPELLINGS = ["/v2/health/ready", "/health", f"/v2/models/{MODEL}/ready"]
TIMED = ["/health/timed", "/health/timed-1", "/health/timed-600", "/health/timed-010"]


@pytest.mark.parametrize("path", ["/v2/health/live", *SPELLINGS])
async def test_ready_is_200_without_a_body(path: str) -> None:
    async with serving() as running:
        response = await get(running.port, path)
    assert (response.status, response.body) == (200, b"")


@pytest.mark.parametrize("path", [*SPELLINGS, *TIMED])
@pytest.mark.parametrize("state", [State.STARTING, State.DRAINING, State.DEAD])
async def test_every_spelling_says_why_it_is_not_ready(path: str, state: State) -> None:
    async with serving(started=state is not State.STARTING) as running:
        running.gateway.enter(state)
        response = await get(running.port, path)
        assert (response.status, response.json) == (503, {"message": state.value})
        assert (await get(running.port, "/v2/health/live")).status == 200


@pytest.mark.parametrize("path", [*SPELLINGS, *TIMED])
async def test_an_overloaded_gateway_is_alive_but_not_ready(path: str) -> None:
    async with serving(StubEngine(silent), max_requests=1) as running:
        async with connection(running.port) as client:
            client.send(request_bytes(generate_body()))
            await eventually(lambda: running.engine.live)
            busy = await get(running.port, path)
            assert (busy.status, busy.json) == (503, {"message": "too many requests at once"})
            assert (await get(running.port, "/v2/health/live")).status == 200
        await eventually(lambda: not running.engine.live)
        running.engine.script = one_token
        assert (await get(running.port, path)).status == 200


async def one_token(request: EngineRequest) -> AsyncIterator[Token]:
    yield token("x")


@pytest.mark.parametrize("path", TIMED)
async def test_timed_takes_one_real_token_ahead_of_the_clients(path: str) -> None:
    async with serving() as running:
        response = await get(running.port, path)
        assert (response.status, response.json) == (200, {"status": "healthy"})
        (probe,) = running.engine.submitted
    assert probe.sampling.max_tokens == 1
    assert probe.priority < 0
    assert probe.prompt


@pytest.mark.parametrize(
    "seconds", ["0", "601", "0010", "9" * 5000, "x", "1.5", "-1", "", "%D9%A1"]
)
async def test_seconds_out_of_range_are_404_and_reach_no_engine(seconds: str) -> None:
    async with serving() as running:
        response = await get(running.port, f"/health/timed-{seconds}")
        assert response.status == 404
        assert running.engine.submitted == []


async def test_an_engine_that_makes_no_token_in_time_is_not_healthy() -> None:
    async with serving(StubEngine(silent)) as running:
        response = await get(running.port, "/health/timed-1")
        assert response.status == 503
        assert response.json == {"message": "the engine made no token within 1 s"}
        await eventually(lambda: len(running.engine.cancelled) == 1)


@pytest.mark.parametrize(
    "refusal", [IncompleteGeneration("broken"), ServiceUnavailable("busy", retry_after=1)]
)
async def test_an_engine_that_refuses_the_probe_is_not_healthy(refusal: Exception) -> None:
    async with serving() as running:
        running.engine.refusal = refusal
        assert (await get(running.port, "/health/timed")).status == 503


async def test_an_engine_that_ends_without_a_token_is_not_healthy() -> None:
    async def ends(request: EngineRequest) -> AsyncIterator[Token]:
        running.engine.live[request.request_id].stream.stop()
        await asyncio.Event().wait()
        yield token("x")

    async with serving(StubEngine(ends)) as running:
        assert (await get(running.port, "/health/timed")).status == 503


async def test_many_probes_at_once_are_one_request_to_the_engine() -> None:
    async with (
        serving(StubEngine(silent)) as running,
        connection(running.port) as one,
        connection(running.port) as two,
    ):
        one.send(get_bytes("/health/timed-600"))
        await eventually(lambda: running.engine.live)
        two.send(get_bytes("/health/timed-600"))
        await eventually(lambda: running.gateway.probe.waiting == 2)
        assert len(running.engine.submitted) == 1
        # The first leaves: the other one still waits for the same token.
        await one.reset()
        await eventually(lambda: running.gateway.probe.waiting == 1)
        assert running.engine.cancelled == []
        (run,) = running.engine.live.values()
        run.stream.push(token("x"))
        assert (await two.response()).status == 200
        running.engine.script = one_token
        assert (await get(running.port, "/health/timed")).status == 200
        assert len(running.engine.submitted) == 2


async def test_the_last_prober_who_leaves_takes_the_request_along() -> None:
    async with serving(StubEngine(silent)) as running:
        async with connection(running.port) as client:
            client.send(get_bytes("/health/timed-600"))
            await eventually(lambda: running.engine.live)
            await client.reset()
        await eventually(lambda: not running.engine.live, within=1.0)


async def test_a_probe_takes_no_clients_place() -> None:
    async with (
        serving(StubEngine(silent), max_requests=1) as running,
        connection(running.port) as prober,
        connection(running.port) as client,
    ):
        prober.send(get_bytes("/health/timed-600"))
        await eventually(lambda: running.engine.live)
        client.send(request_bytes(generate_body()))
        await eventually(lambda: len(running.engine.live) == 2)
