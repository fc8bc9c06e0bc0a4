"""Many requests at once: their texts, their figures, their order, and how they leave."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Self

import pytest

from tests.e2e.support import (
    E2E,
    OpenStream,
    RealGateway,
    ask,
    details,
    eventually,
    streaming,
    text_of,
)

pytestmark = E2E

SLOTS = 16
"""max_num_seqs of the session's engine."""
ENDLESS = {"max_new_tokens": 1900, "temperature": 2.0, "top_k": 2147483647, "seed": 1}
"""Drawn from the whole vocabulary at random, a text has no end."""
LONG_PROMPT = " word" * 1900
"""Seconds of prefill."""


def prompts(count: int) -> list[str]:
    return [f"The number {number} is" for number in range(count)]


async def becomes_idle(real: RealGateway, *, within: float = 2.0) -> None:
    await eventually(lambda: real.idle, within=within, what="the engine holds no request")
    await eventually(
        lambda: real.sample("requests_in_flight") == 0, within=1.0, what="in_flight is 0"
    )


class Fillers:
    """Streams that hold slots of the engine until they are told to leave."""

    def __init__(self, real: RealGateway, count: int) -> None:
        self._real = real
        self._count = count
        self._stack = AsyncExitStack()
        self.streams: list[OpenStream] = []

    async def __aenter__(self) -> Self:
        for prompt in prompts(self._count):
            stream = streaming(self._real.running.port, prompt, **ENDLESS)
            self.streams.append(await self._stack.enter_async_context(stream))
        await asyncio.gather(*(stream.frame() for stream in self.streams))
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()
        await becomes_idle(self._real)


async def test_parallel_streams_each_have_their_own_text(real: RealGateway) -> None:
    alone = [text_of(await ask(real.running, p, max_new_tokens=12)) for p in prompts(SLOTS)]
    assert len(set(alone)) > SLOTS // 2, "the prompts must lead to different texts"
    together = await asyncio.gather(
        *(ask(real.running, p, max_new_tokens=12) for p in prompts(SLOTS))
    )
    assert [text_of(response) for response in together] == alone
    assert max(max(details(r, "batch_size")) for r in together) == SLOTS


async def test_batch_size_is_what_really_ran_together(real: RealGateway) -> None:
    alone = await ask(real.running, "One", max_new_tokens=4)
    assert details(alone, "batch_size") == [1, 1, 1, 1]
    async with Fillers(real, 3):
        among = await ask(real.running, "One", max_new_tokens=4)
        assert details(among, "batch_size") == [4, 4, 4, 4]
    again = await ask(real.running, "One", max_new_tokens=2)
    assert details(again, "batch_size") == [1, 1]


async def test_who_waits_for_a_slot_sees_it_in_queue_wait_time(real: RealGateway) -> None:
    begin = time.monotonic()
    responses = await asyncio.gather(
        *(ask(real.running, p, max_new_tokens=8 + n) for n, p in enumerate(prompts(SLOTS + 4)))
    )
    wall = (time.monotonic() - begin) * 1e6
    waits = sorted(details(r, "queue_wait_time")[0] for r in responses)
    assert all(isinstance(wait, int) for wait in waits)
    # Four waited for others to finish: several steps of tens of milliseconds.
    assert waits[SLOTS - 1] < 0.2 * waits[SLOTS]
    assert waits[SLOTS] > 50_000
    assert waits[-1] < wall
    for response in responses:
        assert details(response, "queue_wait_time")[1:] == [0] * (len(response.frames) - 1)
        waited = details(response, "queue_wait_time")[0] / 1000
        assert response.frames[0]["prefill_time"] >= waited, "its wait is part of it"


async def test_prefill_and_decode_times_fit_the_clock_on_the_wall(real: RealGateway) -> None:
    sent = time.monotonic()
    async with streaming(real.running.port, " word" * 400, max_new_tokens=12) as stream:
        frames, arrived = [], []
        for _ in range(12):
            frames.append(await stream.frame())
            arrived.append(time.monotonic())
    prefill = frames[0]["prefill_time"]
    decodes = [frame["decode_time"] for frame in frames[1:]]
    to_first = (arrived[0] - sent) * 1000
    assert 0.3 * to_first < prefill <= to_first + 1
    assert all(value > 0 for value in decodes)
    assert sum(decodes) == pytest.approx((arrived[-1] - arrived[0]) * 1000, rel=0.3, abs=20)


@pytest.mark.parametrize("where", ["queue", "prefill", "decode"])
async def test_a_client_that_leaves_frees_its_place(real: RealGateway, where: str) -> None:
    if where == "queue":
        async with Fillers(real, SLOTS):
            await leave_while(real, "waiting in the queue", "One", waiting)
            assert real.unfinished == SLOTS
    elif where == "prefill":
        await leave_while(real, "in prefill", LONG_PROMPT, running)
    else:
        async with streaming(real.running.port, "One", **ENDLESS) as stream:
            for _ in range(3):
                await stream.frame()
            assert real.unfinished == 1
    await becomes_idle(real, within=1.0)
    assert real.engine.load().kv_cache_usage == 0
    after = await ask(real.running, "One", max_new_tokens=2)
    assert details(after, "batch_size") == [1, 1]


def waiting(real: RealGateway) -> bool:
    return real.engine.load().waiting == 1


def running(real: RealGateway) -> bool:
    return real.unfinished == 1


async def leave_while(real: RealGateway, what: str, prompt: str, state: Any) -> None:
    before = real.unfinished
    async with streaming(real.running.port, prompt, max_new_tokens=500) as stream:
        await eventually(lambda: state(real), within=5.0, what=what)
        await stream.leave()
    seconds = await eventually(lambda: real.unfinished == before, within=1.0, what=f"gone: {what}")
    assert seconds < 1.0
    await eventually(lambda: real.engine.load().waiting == 0, within=1.0, what="the queue is empty")


async def test_many_leave_at_once_and_count_as_cancelled(real: RealGateway) -> None:
    cancelled, failed = (partial(outcomes, real, outcome) for outcome in ("cancelled", "failed"))
    before = cancelled(), failed()
    async with AsyncExitStack() as stack:
        for prompt in prompts(2 * SLOTS):
            stream = streaming(real.running.port, prompt, **ENDLESS)
            await stack.enter_async_context(stream)
        await eventually(lambda: real.unfinished == 2 * SLOTS, within=5.0)
    await becomes_idle(real, within=1.0)
    assert (cancelled() - before[0], failed() - before[1]) == (2 * SLOTS, 0)


def outcomes(real: RealGateway, outcome: str) -> float:
    return real.sample("requests_finished_total", outcome=outcome)


async def test_priority_is_the_order_when_the_engine_is_full(real: RealGateway) -> None:
    """Three wait for the one slot that becomes free; the most urgent came last."""
    order: list[int] = []

    async def urgent(priority: int) -> None:
        response = await ask(real.running, "One", max_new_tokens=1, priority=priority)
        assert response.status == 200
        order.append(priority)

    async with Fillers(real, SLOTS) as fillers:
        tasks = []
        for count, priority in enumerate((5, 3, 1), 1):
            tasks.append(asyncio.create_task(urgent(priority)))
            await eventually(partial(queue_is, real, count), within=5.0)
        await fillers.streams[0].leave()
        await asyncio.gather(*tasks)
    assert order == [1, 3, 5]


def queue_is(real: RealGateway, count: int) -> bool:
    return real.engine.load().waiting == count
