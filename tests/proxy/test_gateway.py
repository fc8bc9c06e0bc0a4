"""The life of a gateway as clients see it: starting, ready, draining, dead, full."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from proxy.engines.stub import STUB_INFO, StubEngine, silent
from proxy.gateway import State
from tests.proxy.test_app import assert_error
from tests.support import (
    RawResponse,
    connection,
    eventually,
    finish,
    generate_body,
    get,
    only_stream,
    post,
    request_bytes,
    serving,
    token,
)
from translators.errors import ServiceUnavailable

ROUTE_OF_ANOTHER_MODEL = "/v2/models/other/generate_stream"


def assert_unavailable(response: RawResponse, text: str) -> None:
    """503 of a service route, with the time after which to come again."""
    assert text in assert_error(response, 503, "Service Unavailable")
    assert int(response.headers["retry-after"]) >= 1


async def test_starting() -> None:
    """The engine is loading: alive, not ready, and no request hangs."""
    engine = StubEngine()
    engine.start_gate.clear()
    async with serving(engine, started=False) as running:
        starting = asyncio.create_task(running.gateway.start_engine(running.deaths.append))
        await asyncio.sleep(0)
        assert (await get(running.port, "/v2/health/live")).status == 200
        ready = await get(running.port, "/v2/health/ready")
        assert ready.status == 503
        assert ready.json == {"message": "the engine is starting"}
        for path in (None, ROUTE_OF_ANOTHER_MODEL):
            response = await post(running.port, generate_body(), *([path] if path else []))
            assert_unavailable(response, "starting")
        assert running.metric("mindie_gateway_ready") == 0
        engine.start_gate.set()
        await starting
        assert (await get(running.port, "/v2/health/ready")).status == 200
        assert running.metric("mindie_gateway_ready") == 1
        assert (await post(running.port, generate_body())).status == 200


async def test_ready_has_no_body() -> None:
    async with serving() as running:
        for path in ("/v2/health/ready", "/v2/health/live"):
            response = await get(running.port, path)
            assert (response.status, response.body) == (200, b"")


async def test_draining() -> None:
    """What runs goes on; what is new is refused, after its JSON was read."""
    engine = StubEngine(silent)
    async with serving(engine) as running, connection(running.port) as client:
        client.send(request_bytes(generate_body()))
        stream = await only_stream(engine)
        running.gateway.enter(State.DRAINING)
        assert (await get(running.port, "/v2/health/live")).status == 200
        assert (await get(running.port, "/v2/health/ready")).json == {
            "message": "the server is shutting down"
        }
        assert_unavailable(await post(running.port, generate_body()), "shutting down")
        assert (await post(running.port, b"{")).status == 422
        assert (await post(running.port, b"{", ROUTE_OF_ANOTHER_MODEL)).status == 404
        stream.push(token("a"))
        finish(engine, stream, "b")
        response = await client.response()
        assert response.complete
        assert response.texts == ["a", "b"]
        await running.settled(succeeded=1, refused=3)


async def test_a_drain_that_begins_between_the_checks_and_the_engine() -> None:
    """The request had passed the check; it is refused before the engine sees it."""

    class DrainsWhileCounting(StubEngine):
        async def tokenize(self, text: str) -> list[int]:
            running.gateway.enter(State.DRAINING)
            return await super().tokenize(text)

    engine = DrainsWhileCounting()
    async with serving(engine) as running:
        assert_unavailable(await post(running.port, generate_body()), "shutting down")
        assert not engine.submitted


async def test_dead_while_idle() -> None:
    async with serving() as running:
        running.engine.die("killed")
        assert running.deaths == ["killed"]
        running.gateway.enter(State.DEAD)
        assert (await get(running.port, "/v2/health/live")).status == 200
        assert (await get(running.port, "/v2/health/ready")).json == {
            "message": "the engine has died"
        }
        assert_unavailable(await post(running.port, generate_body()), "died")


@pytest.mark.parametrize("tokens", [0, 2], ids=["before the first token", "after two"])
async def test_death_ends_every_stream_with_an_error_frame(tokens: int) -> None:
    engine = StubEngine(silent)
    async with serving(engine) as running:
        clients = [connection(running.port) for _ in range(5)]
        opened = [await each.__aenter__() for each in clients]
        for client in opened:
            client.send(request_bytes(generate_body()))
        await eventually(lambda: len(engine.live) == 5)
        for run in engine.live.values():
            for number in range(tokens):
                run.stream.push(token("a", number + 1))
        engine.die()
        for client in opened:
            response = await client.response()
            assert not response.complete
            *frames, last = response.frames
            assert len(frames) == tokens
            assert last["err_msg"] == "the engine died"
            assert last["error_type"] == "Incomplete Generation"
        for each in clients:
            await each.__aexit__(None, None, None)
        await running.settled(failed=5)


async def test_death_in_the_server_contract_is_raw_text_and_a_normal_end() -> None:
    engine = StubEngine(silent)
    async with serving(engine, contract="server") as running, connection(running.port) as client:
        client.send(request_bytes(generate_body()))
        stream = await only_stream(engine)
        stream.push(token("a"))
        engine.die()
        response = await client.response()
        assert response.complete
        assert response.chunks[1:] == [b"Failed to get engine response"]
        await running.settled(failed=1)


# Admission: beyond the limit 503 at once, never a hang.


async def test_too_many_requests_are_refused_at_once() -> None:
    engine = StubEngine(silent)
    async with serving(engine, max_requests=2) as running:
        running.engine.script = silent
        held = [connection(running.port) for _ in range(2)]
        for each in held:
            (await each.__aenter__()).send(request_bytes(generate_body()))
        await eventually(lambda: len(engine.live) == 2)
        for _ in range(3):
            assert_unavailable(await post(running.port, generate_body()), "at most 2")
        # A full gateway is alive, and tells other faults first.
        assert (await get(running.port, "/v2/health/live")).status == 200
        assert (await post(running.port, b"{")).status == 422
        await held[0].__aexit__(None, None, None)
        await eventually(lambda: len(engine.live) == 1)
        async with connection(running.port) as client:
            client.send(request_bytes(generate_body()))
            assert (await client.head()).status == 200
        await held[1].__aexit__(None, None, None)
        await running.settled(cancelled=3, refused=4)


async def test_a_request_that_the_engine_is_taking_holds_its_place() -> None:
    engine = StubEngine()
    engine.submit_gate.clear()
    async with serving(engine, max_requests=1) as running, connection(running.port) as client:
        client.send(request_bytes(generate_body()))
        await eventually(lambda: engine.submitted)
        assert_unavailable(await post(running.port, generate_body()), "at most 1")
        engine.submit_gate.set()
        assert (await client.response()).complete
        await running.settled(succeeded=1, refused=1)


@pytest.mark.parametrize(("own", "sequences", "limit"), [(None, 7, 28), (3, 7, 3)])
async def test_the_default_limit_comes_from_the_engine(
    own: int | None, sequences: int, limit: int
) -> None:
    engine = StubEngine(info=replace(STUB_INFO, max_num_seqs=sequences))
    async with serving(engine, max_requests=own) as running:
        assert running.gateway.admission.limit == limit


async def test_every_refusal_frees_its_place() -> None:
    async with serving(max_requests=1) as running:
        running.engine.refusal = ServiceUnavailable("the engine's queue is full", retry_after=7)
        for _ in range(3):
            response = await post(running.port, generate_body())
            assert response.status == 503
            assert response.headers["retry-after"] == "7"
        await running.settled(refused=3)


async def test_a_stop_is_a_normal_last_frame() -> None:
    """What stopInfer does (contract §5): every live request with the id, and only those."""
    engine = StubEngine(silent)
    async with serving(engine) as running:
        clients = [connection(running.port) for _ in range(3)]
        opened = [await each.__aenter__() for each in clients]
        for client, name in zip(opened, ("same", "same", "other"), strict=True):
            client.send(request_bytes({"id": name, **generate_body(details=True)}))
        await eventually(lambda: len(engine.live) == 3)
        for run in engine.live.values():
            run.stream.push(token("a"))
        assert running.gateway.live.stop("same") == 2
        assert running.gateway.live.stop("unknown") == 0
        for client in opened[:2]:
            response = await client.response()
            assert response.complete
            first, last = response.frames
            assert first["text_output"] == "a"
            assert last["text_output"] == ""
            assert last["details"]["finish_reason"] == "stop_sequence"
            assert "err_msg" not in last
        assert len(engine.cancelled) == 2
        await eventually(lambda: running.outcomes == {"succeeded": 2})
        assert running.gateway.live.stop("same") == 0
        assert running.gateway.live.stop("other") == 1
        for each in clients:
            await each.__aexit__(None, None, None)


async def test_a_stop_before_the_first_token_is_a_normal_end_as_well() -> None:
    engine = StubEngine(silent)
    async with serving(engine) as running, connection(running.port) as client:
        client.send(request_bytes({"id": "a", **generate_body()}))
        await only_stream(engine)
        running.gateway.live.stop("a")
        response = await client.response()
        assert response.complete
        assert response.texts == [""]
        await running.settled(succeeded=1)
