"""A request that the server has not begun to answer: stopped and broken like any other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.fake_vllm import EVENT_STREAM, Answer, Call
from tests.proxy.engines.remote.sidecar import Sidecar, faulty
from tests.support import STOP_PATH, RawResponse, eventually, generate_body, post
from translators.errors import ServiceUnavailable

BODY = {**generate_body("one two", 5, details=True), "id": "mine"}


async def silent(call: Call) -> None:
    """No answer at all."""
    await call.gone.wait()


async def only_a_head(call: Call) -> None:
    """The moment in which a refusal may still come has begun."""
    await call.send(EVENT_STREAM)
    await call.gone.wait()


@asynccontextmanager
async def asked(answer: Answer) -> AsyncIterator[tuple[Sidecar, asyncio.Task[RawResponse]]]:
    """A request that is with the server."""
    async with faulty(answer) as opened:
        response = asyncio.create_task(post(opened.port, BODY))
        await eventually(lambda: bool(opened.server.calls))
        yield opened, response
        await asyncio.wait({response})


@pytest.mark.parametrize("answer", [silent, only_a_head])
async def test_stop_infer_ends_it_at_once_and_normally(answer: Answer) -> None:
    async with asked(answer) as (opened, response):
        assert (await post(opened.port, {"id": "mine"}, STOP_PATH)).status == 200
        stopped = await response
        assert (stopped.status, stopped.complete, stopped.texts) == (200, True, [""])
        assert stopped.frames[-1]["details"]["finish_reason"] == "stop_sequence"
        # The server is told, by the end of its connection.
        await asyncio.wait_for(opened.server.calls[0].gone.wait(), 5)
        # Together with the stop, which is a request as well.
        await opened.settled(succeeded=2)


async def test_the_end_of_a_drain_is_told_while_that_can_be_an_answer() -> None:
    async with asked(silent) as (opened, response):
        opened.running.gateway.live.break_all(ServiceUnavailable("the server is shutting down"))
        refused = await response
        assert refused.status == 503
        assert refused.json["error"] == "the server is shutting down"
        await asyncio.wait_for(opened.server.calls[0].gone.wait(), 5)


async def test_two_ends_are_one() -> None:
    async with asked(silent) as (opened, response):
        live = opened.running.gateway.live
        assert live.stop("mine") == 1
        live.break_all(ServiceUnavailable("too late"))
        stopped = await response
        assert (stopped.status, stopped.complete) == (200, True)


async def test_a_stop_in_the_moment_in_which_the_answer_begins_is_a_stop() -> None:
    begins = asyncio.Event()

    async def answer(call: Call) -> None:
        await begins.wait()
        await call.send(EVENT_STREAM)
        await call.gone.wait()

    async with asked(answer) as (opened, response):
        begins.set()
        while not opened.running.gateway.live.stop("mine"):
            await asyncio.sleep(0)
        stopped = await response
        assert (stopped.status, stopped.complete, stopped.texts) == (200, True, [""])
        await asyncio.wait_for(opened.server.calls[0].gone.wait(), 5)
        await opened.settled(succeeded=1)
