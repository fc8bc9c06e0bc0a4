"""Places: who runs, who waits and in which order, who is refused."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import replace
from typing import Any

import pytest

from proxy.admission import Admission, Place
from proxy.engines.base import EngineRequest
from proxy.engines.stub import STUB_INFO, StubEngine, silent
from proxy.gateway import State
from tests.support import (
    STREAM_PATH,
    Connection,
    connection,
    eventually,
    generate_body,
    post,
    request_bytes,
    serving,
)
from translators.errors import ServiceUnavailable
from translators.tokens import Finish, FinishReason, Token


def admission(running: int, limit: int) -> Admission:
    places = Admission()
    places.running_limit, places.limit = running, limit
    return places


class Queue:
    """Requests by name: each holds a place until it is told to give it up."""

    def __init__(self, places: Admission) -> None:
        self.places = places
        self.stacks: dict[str, ExitStack] = {}
        self.held: dict[str, Place] = {}

    def enter(self, name: str, priority: int = 0) -> None:
        self.stacks[name] = ExitStack()
        self.held[name] = self.stacks[name].enter_context(self.places.place(priority))

    def leave(self, name: str) -> None:
        del self.held[name]
        self.stacks[name].close()

    @property
    def running(self) -> list[str]:
        return [name for name, place in self.held.items() if place.running]


async def test_the_most_urgent_comes_first_and_then_the_oldest() -> None:
    queue = Queue(admission(1, 10))
    queue.enter("runs")
    for name, priority in (("a", 0), ("b", -1), ("c", 0), ("d", -4), ("e", -1)):
        queue.enter(name, priority)
    order = []
    for _ in range(6):
        (running,) = queue.running
        order.append(running)
        queue.leave(running)
    assert order == ["runs", "d", "b", "e", "a", "c"]
    assert (queue.places.in_use, queue.places.running, queue.places.waiting) == (0, 0, 0)


async def test_who_leaves_the_queue_frees_its_place_and_is_passed_over() -> None:
    queue = Queue(admission(1, 3))
    for name in ("runs", "leaves", "stays"):
        queue.enter(name)
    with pytest.raises(ServiceUnavailable) as refused:
        queue.enter("too many")
    assert refused.value.retry_after == 1
    queue.leave("leaves")
    queue.enter("fits")
    assert queue.places.waiting == 2
    queue.leave("runs")
    assert queue.running == ["stays"]


async def test_a_turn_that_comes_as_its_client_leaves_goes_to_the_next() -> None:
    queue = Queue(admission(1, 3))
    for name in ("runs", "leaves", "next"):
        queue.enter(name)
    task = asyncio.create_task(queue.held["leaves"].turn())
    await asyncio.sleep(0)
    queue.leave("runs")
    task.cancel()
    await asyncio.wait([task])
    queue.leave("leaves")
    assert queue.running == ["next"]
    assert queue.places.running == 1


async def test_stopped_and_broken_waits_end_and_get_no_turn() -> None:
    queue = Queue(admission(1, 4))
    for name in ("runs", "stopped", "broken", "next"):
        queue.enter(name)
    queue.held["stopped"].stop()
    queue.held["broken"].fail(ServiceUnavailable("no"))
    queue.leave("runs")
    assert queue.running == ["next"]
    assert await queue.held["stopped"].turn() is False
    with pytest.raises(ServiceUnavailable):
        await queue.held["broken"].turn()
    # The first word counts, also for one that runs.
    queue.held["next"].stop()
    assert await queue.held["next"].turn() is True


async def test_refusing_those_that_wait_leaves_those_that_run() -> None:
    queue = Queue(admission(1, 3))
    for name in ("runs", "a", "b"):
        queue.enter(name, -1 if name == "b" else 0)
    queue.places.refuse_waiting(ServiceUnavailable("shutting down"))
    for name in ("a", "b"):
        with pytest.raises(ServiceUnavailable):
            await queue.held[name].turn()
    assert await queue.held["runs"].turn() is True


async def test_without_limits_everybody_runs() -> None:
    queue = Queue(Admission())
    for number in range(1000):
        queue.enter(str(number))
    assert len(queue.running) == 1000


async def test_a_queue_that_turns_over_keeps_nothing() -> None:
    places = admission(1, 10)
    with places.place():
        for _ in range(1000):
            with places.place(-1):
                pass
        assert sum(map(len, places._queues.values())) == 0


# On the wire.


class Gate:
    """A script that holds each request until its turn to end is called."""

    def __init__(self) -> None:
        self.served: list[str] = []
        self.ends: dict[str, asyncio.Event] = {}

    def serves(self, text: str) -> Callable[[], bool]:
        return lambda: text in self.ends

    async def __call__(self, request: EngineRequest) -> AsyncIterator[Token]:
        self.served.append(request.text)
        self.ends[request.text] = asyncio.Event()
        await self.ends[request.text].wait()
        yield Token(1, "x", 0.0, 0.0, 1, Finish(FinishReason.LENGTH))


async def opened(stack: AsyncExitStack, running: Any, text: str, **parameters: Any) -> Connection:
    """A client whose request has got a place."""
    before = running.gateway.admission.in_use
    client = await stack.enter_async_context(connection(running.port))
    client.send(request_bytes({"id": text, **generate_body(text, **parameters)}))
    await eventually(lambda: running.gateway.admission.in_use == before + 1)
    return client


async def test_the_queue_is_served_by_priority() -> None:
    gate = Gate()
    async with (
        serving(StubEngine(gate), max_running=1) as running,
        AsyncExitStack() as stack,
    ):
        clients = [await opened(stack, running, "first")]
        for text, priority in (("five", 5), ("three", 3), ("one", 1), ("also-one", 1)):
            clients.append(await opened(stack, running, text, priority=priority))
        for text in ("first", "one", "also-one", "three", "five"):
            await eventually(gate.serves(text))
            gate.ends[text].set()
        for client in clients:
            assert (await client.response()).complete
        assert gate.served == ["first", "one", "also-one", "three", "five"]
        await running.settled(succeeded=5)


async def test_priorities_count_for_nothing_where_the_engine_ignores_them() -> None:
    gate = Gate()
    engine = StubEngine(gate, replace(STUB_INFO, priority_scheduling=False))
    async with serving(engine, max_running=1) as running, AsyncExitStack() as stack:
        for text, priority in (("first", 5), ("five", 5), ("one", 1)):
            await opened(stack, running, text, priority=priority)
        gate.ends["first"].set()
        await eventually(lambda: len(gate.served) == 2)
        assert gate.served == ["first", "five"]


async def test_beyond_the_queue_it_is_503_within_10_ms() -> None:
    engine = StubEngine(silent)
    async with (
        serving(engine, max_running=1, max_requests=3) as running,
        AsyncExitStack() as stack,
    ):
        for text in ("runs", "waits", "waits-too"):
            await opened(stack, running, text)
        took = []
        async with connection(running.port) as client:
            for _ in range(20):
                started = time.perf_counter()
                response = await client.ask(request_bytes(generate_body()))
                took.append(time.perf_counter() - started)
                assert response.status == 503
                assert response.headers["retry-after"] == "1"
                assert response.json["error_type"] == "Service Unavailable"
        assert sorted(took)[len(took) // 2] < 0.010
        assert len(engine.submitted) == 1
        assert b"mindie_gateway_requests_waiting 2.0" in running.gateway.metrics.render()


async def test_a_client_that_leaves_the_queue_frees_its_place() -> None:
    engine = StubEngine(silent)
    async with (
        serving(engine, max_running=1, max_requests=2) as running,
        AsyncExitStack() as stack,
    ):
        await opened(stack, running, "runs")
        async with AsyncExitStack() as short:
            await opened(short, running, "leaves")
            assert (await post(running.port, generate_body())).status == 503
        await eventually(lambda: running.gateway.admission.waiting == 0)
        await opened(stack, running, "fits")
        assert len(engine.submitted) == 1


async def test_the_longest_wait_for_a_token_includes_the_queue() -> None:
    async with (
        serving(StubEngine(silent), max_running=1) as running,
        AsyncExitStack() as stack,
    ):
        await opened(stack, running, "runs")
        started = time.perf_counter()
        response = await post(running.port, generate_body(timeout=1))
        assert 0.9 < time.perf_counter() - started < 3
        assert response.status == 500
        assert response.json["error"] == "client timeout of 1 s ran out"
        assert running.gateway.admission.in_use == 1


async def test_time_in_the_queue_is_no_second_allowance() -> None:
    gate = Gate()
    async with (
        serving(StubEngine(gate), max_running=1) as running,
        AsyncExitStack() as stack,
    ):
        await opened(stack, running, "first")
        client = await opened(stack, running, "second", timeout=1)
        started = time.perf_counter()
        asyncio.get_running_loop().call_later(0.6, gate.ends["first"].set)
        response = await client.response()
        assert time.perf_counter() - started < 1.4
        assert not response.complete
        assert response.frames[-1]["err_msg"] == "client timeout of 1 s ran out"


async def test_the_whole_requests_clock_runs_in_the_queue_too() -> None:
    async with serving(StubEngine(silent), e2e_timeout=0.3) as running:
        # No place ever comes.
        running.gateway.admission.running_limit = 0
        response = await post(running.port, generate_body())
        assert response.status == 500
        assert response.json["error"] == "server e2eTimeout of 0.3 s ran out"


async def test_stop_reaches_those_that_wait() -> None:
    engine = StubEngine(silent)
    async with serving(engine, max_running=1) as running, AsyncExitStack() as stack:
        await opened(stack, running, "runs")
        client = await opened(stack, running, "waits", details=True)
        stopped = await post(
            running.port, {"id": "waits"}, STREAM_PATH.replace("generate_stream", "stopInfer")
        )
        assert stopped.status == 200
        response = await client.response()
        assert response.complete
        (frame,) = response.frames
        assert frame["text_output"] == ""
        assert frame["details"]["finish_reason"] == "stop_sequence"
        assert len(engine.submitted) == 1


async def test_those_that_wait_are_refused_when_the_engine_dies() -> None:
    engine = StubEngine(silent)
    async with serving(engine, max_running=1) as running, AsyncExitStack() as stack:
        await opened(stack, running, "runs")
        client = await opened(stack, running, "waits")
        running.gateway.enter(State.DEAD)
        running.gateway.admission.refuse_waiting(running.gateway.unavailable())
        response = await client.response()
        assert response.status == 503
        assert response.json["error"] == "the engine has died"


async def test_three_hundred_that_come_and_go_leave_the_books_at_zero() -> None:
    async with serving(max_running=3, max_requests=20) as running:
        statuses = await asyncio.gather(
            *(ask_or_leave(running.port, number) for number in range(300))
        )
        assert set(statuses) <= {200, 503, None}
        assert 200 in statuses
        assert 503 in statuses
        await eventually(lambda: running.gateway.admission.in_use == 0)
        assert running.gateway.admission.running == 0
        assert (await post(running.port, generate_body())).status == 200


async def ask_or_leave(port: int, number: int) -> int | None:
    async with connection(port) as client:
        client.send(request_bytes(generate_body(tokens=20, priority=1 + number % 5)))
        if number % 3 == 0:
            await asyncio.sleep(number / 30_000)
            return None
        return (await client.response()).status
