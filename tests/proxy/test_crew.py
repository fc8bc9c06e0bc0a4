"""What ties workers together: parts of limits, questions, and what a dead one leaves."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

import proxy.crew
from proxy.crew import ALONE, Deposit, Exchange, Siblings, Worker
from proxy.gateway import OVERLOADED
from tests.support import STOP_PATH, RunningGateway, generate_body, get, post, serving
from tests.workers import outcomes, total

RECEIVED = "mindie_gateway_requests_received_total"


@given(st.integers(1, 64), st.integers(1, 10_000))
def test_the_parts_of_a_limit_add_up_to_it_and_are_alike(count: int, more: int) -> None:
    whole = count + more
    parts = [Worker(index, count).part(whole) for index in range(count)]
    assert sum(parts) == whole
    assert max(parts) - min(parts) <= 1


def test_alone_it_has_all_and_nobody_is_left_with_nothing() -> None:
    assert ALONE.part(7) == 7
    assert [Worker(index, 3).part(2) for index in range(3)] == [1, 1, 1]


@asynccontextmanager
async def three(answers: dict[str, Any]) -> AsyncIterator[list[Siblings]]:
    exchange = Exchange.open(3)
    siblings = [Siblings(Worker(index, 3), exchange) for index in range(3)]
    for number, each in enumerate(siblings):
        await each.serve({**answers, "who": lambda value, number=number: [number, value]})
    try:
        yield siblings
    finally:
        for each in siblings:
            each.close()


async def test_the_others_are_asked_in_their_order() -> None:
    async with three({}) as (first, second, third):
        assert await first.ask("who", "x") == [[1, "x"], [2, "x"]]
        assert await second.ask("who") == [[0, None], [2, None]]
        # Long answers come whole.
        assert await third.ask("who", "y" * 60_000) == [[0, "y" * 60_000], [1, "y" * 60_000]]


@contextmanager
def silent(siblings: Siblings) -> Iterator[None]:
    """It answers no more, but its parent holds its socket open, as that of a frozen one."""
    with siblings._own.dup():
        siblings.close()
        yield


async def test_one_that_is_gone_or_silent_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(proxy.crew, "ASK_WITHIN", 0.1)
    caplog.set_level(logging.WARNING)
    async with three({}) as (first, second, third):
        second.close()
        second._own.close()
        with silent(third):
            assert await first.ask("who") == [None, None]
            assert await first.ask("who", of_ended="ended") == ["ended", None]
        assert caplog.text.count("another worker does not answer") == 2


async def test_a_question_whose_asker_has_given_up_is_dropped() -> None:
    stopped: list[Any] = []
    async with three({"stop": stopped.append}) as (first, second, _):
        address = first._own.getsockname()
        for until, answer in ((-0.001, b""), (30.0, b"null")):
            asked = second._secret + orjson.dumps([time.monotonic() + until, "stop", until])
            assert await proxy.crew._exchange(address, asked) == answer
    assert stopped == [30.0]


async def test_a_stranger_gets_no_answer() -> None:
    asked: list[Any] = []
    async with three({"stop": asked.append}) as (first, second, _):
        second._secret = b"x" * 32
        assert await second.ask("stop", "id") == [None, None]
        address = first._own.getsockname()
        assert await proxy.crew._exchange(address, b"") == b""
        assert await proxy.crew._exchange(address, b"\0" * 100_000) == b""
    assert asked == []


def test_a_deposit_keeps_what_was_left_last() -> None:
    deposit = Deposit()
    assert deposit.left() is None
    for thing in ("first", {"second": [1.5, None]}, "third"):
        deposit.leave(thing)
        assert deposit.left() == thing
    deposit.leave("x" * 2_000_000)
    assert deposit.left() == "third"


def test_a_death_while_it_writes_costs_only_that_one() -> None:
    deposit = Deposit()
    deposit.leave("whole")

    class Dies(Exception):
        pass

    class Memory:
        """Shared memory whose writer is killed before it says that it is done."""

        def __init__(self, memory: Any) -> None:
            self.memory = memory

        def __getitem__(self, key: Any) -> Any:
            return self.memory[key]

        def __setitem__(self, key: Any, value: Any) -> None:
            if key == 0:
                raise Dies
            self.memory[key] = value

    memory, deposit._memory = deposit._memory, Memory(deposit._memory)  # type: ignore[assignment]
    with pytest.raises(Dies):
        deposit.leave("half")
    deposit._memory = memory
    assert deposit.left() == "whole"


@asynccontextmanager
async def two_gateways(**settings: Any) -> AsyncIterator[list[RunningGateway]]:
    """Two workers in this process, each with its own port."""
    exchange = Exchange.open(2)
    async with serving(**settings) as one, serving(**settings) as other:
        for index, running in enumerate((one, other)):
            running.gateway.worker = Worker(index, 2)
            await running.gateway.join(Siblings(running.gateway.worker, exchange))
        yield [one, other]
        for running in (one, other):
            assert running.gateway.siblings is not None
            running.gateway.siblings.close()


async def test_any_worker_that_cannot_work_makes_all_unready() -> None:
    async with two_gateways() as (one, other):
        assert (await get(one.port, "/v2/health/ready")).status == 200
        other.gateway.watchdog.stalled = True
        for running in (one, other):
            answer = await get(running.port, "/v2/health/ready")
            assert answer.json == {"message": "the engine makes no progress"}
            page = (await get(running.port, "/metrics")).body
            assert b"mindie_gateway_ready 0.0" in page
            assert b"mindie_gateway_engine_stalled 1.0" in page


async def test_it_is_full_when_all_are() -> None:
    async with two_gateways() as (one, other):
        one.gateway.admission.limit = 0
        assert (await get(one.port, "/v2/health/ready")).status == 200
        other.gateway.admission.limit = 0
        assert (await get(one.port, "/v2/health/ready")).json == {"message": OVERLOADED}


async def test_what_a_silent_worker_had_counted_is_still_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(proxy.crew, "ASK_WITHIN", 0.1)
    async with two_gateways() as (one, other):
        for running in (one, other):
            assert (await post(running.port, generate_body())).complete
        await get(other.port, "/metrics")
        assert other.gateway.siblings is not None
        with silent(other.gateway.siblings):
            page = (await get(one.port, "/metrics")).body.decode()
            assert 'requests_received_total{route="generate_stream"} 2.0' in page
            assert "mindie_gateway_workers 1.0" in page
            assert "mindie_gateway_ready 0.0" in page
            answer = await get(one.port, "/v2/health/ready")
            assert answer.json == {"message": "a worker does not answer"}


async def test_the_requests_of_a_worker_that_has_ended_have_ended_those_of_a_silent_one_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(proxy.crew, "ASK_WITHIN", 0.1)
    async with two_gateways() as (one, other):
        other.gateway.metrics.received.labels("generate").inc()
        other.gateway.leave_books()
        assert other.gateway.siblings is not None
        with silent(other.gateway.siblings):
            page = (await get(one.port, "/metrics")).body.decode()
            assert (total(page, RECEIVED), outcomes(page)) == (1, {})
        page = (await get(one.port, "/metrics")).body.decode()
        assert (total(page, RECEIVED), outcomes(page)) == (1, {"failed": 1})
        assert total(page, "mindie_gateway_ready") == 0


async def test_stop_infer_does_not_call_a_request_unknown_that_a_silent_worker_may_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(proxy.crew, "ASK_WITHIN", 0.1)
    async with two_gateways() as (one, other):
        assert other.gateway.siblings is not None
        with silent(other.gateway.siblings):
            answer = await post(one.port, {"id": "whose"}, STOP_PATH)
            assert (answer.status, answer.headers["retry-after"]) == (503, "1")
            assert answer.json["error"] == "a worker does not answer"
        # One that has ended has none.
        assert (await post(one.port, {"id": "whose"}, STOP_PATH)).status == 500


async def test_only_the_first_one_tells_the_engines_load() -> None:
    async with two_gateways(mindie_metrics=True) as (one, other):
        for running in (one, other):
            load = running.engine.load()
            running.engine.load = lambda load=load: type(load)(
                running=3, waiting=4, kv_cache_usage=0.5, preemptions=2
            )
        page = (await get(other.port, "/metrics")).body.decode()
        for line in (
            "mindie_gateway_requests_running 3.0",
            "mindie_gateway_requests_waiting 4.0",
            'num_requests_running{model_name="llama3-70b"} 3.0',
            'npu_cache_usage_perc{model_name="llama3-70b"} 0.5',
            'num_preemptions_total{model_name="llama3-70b"} 2.0',
        ):
            assert line in page


async def test_books_are_left_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.gateway._BOOKS_PERIOD", 0.001)
    async with two_gateways() as (one, _):
        assert one.gateway.siblings is not None
        keeping = asyncio.create_task(one.gateway.keep_books())
        async with asyncio.timeout(5):
            while one.gateway.siblings.own_deposit.left() is None:
                await asyncio.sleep(0.001)
        keeping.cancel()
