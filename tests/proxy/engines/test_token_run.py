"""Tokens with their text and their times."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.proxy.engines.fakes import reading
from translators.tokens import Finish, FinishReason, Token


async def test_times_count_from_the_queue_and_then_from_token_to_token() -> None:
    it = reading()
    it.run.queued(100.0)
    it.run.scheduled(100.25)
    it.run.token(1, 101.0, 3, None)
    it.run.token(2, 101.5, 2, FinishReason.LENGTH)
    assert await it.tokens() == [
        Token(1, "a", 1.0, 0.25, 3),
        Token(2, "b", 0.5, 0.0, 2, Finish(FinishReason.LENGTH)),
    ]


async def test_the_wait_after_a_preemption_belongs_to_the_next_token() -> None:
    it = reading()
    it.run.queued(10.0)
    it.run.scheduled(10.0)
    it.run.token(1, 11.0, 1, None)
    it.run.preempted(12.0)
    it.run.scheduled(14.0)
    it.run.preempted(15.0)
    it.run.scheduled(15.5)
    it.run.token(2, 16.0, 1, None)
    it.run.token(3, 17.0, 1, FinishReason.LENGTH)
    assert [(t.latency, t.waited) for t in await it.tokens()] == [
        (1.0, 0.0),
        (5.0, 2.5),
        (1.0, 0.0),
    ]


async def test_a_second_schedule_without_a_wait_adds_nothing() -> None:
    it = reading()
    it.run.queued(1.0)
    it.run.scheduled(2.0)
    it.run.scheduled(9.0)
    it.run.token(1, 10.0, 1, FinishReason.LENGTH)
    (token,) = await it.tokens()
    assert token.waited == 1.0


async def test_the_second_queue_stamp_does_not_restart_the_clock() -> None:
    it = reading()
    it.run.queued(1.0)
    it.run.queued(5.0)
    it.run.scheduled(6.0)
    it.run.token(1, 7.0, 1, FinishReason.LENGTH)
    (token,) = await it.tokens()
    assert (token.latency, token.waited) == (6.0, 1.0)


async def test_the_tokens_of_one_step_come_at_one_moment() -> None:
    it = reading()
    it.run.queued(0.0)
    it.run.tokens([1, 2, 3], 2.0, 4, FinishReason.LENGTH)
    tokens = await it.tokens()
    assert [token.text for token in tokens] == ["a", "b", "c"]
    assert [token.latency for token in tokens] == [2.0, 0.0, 0.0]
    assert [token.finish for token in tokens] == [None, None, Finish(FinishReason.LENGTH)]


async def test_the_token_that_ends_the_text_is_no_part_of_it() -> None:
    it = reading()
    it.run.tokens([1, 2], 1.0, 1, FinishReason.END)
    assert [token.text for token in await it.tokens()] == ["a", ""]


@pytest.mark.parametrize("reason", [FinishReason.LENGTH, FinishReason.END])
async def test_a_half_character_at_the_end_is_the_tail(reason: FinishReason) -> None:
    it = reading()
    ids = [1, 0] if reason is FinishReason.LENGTH else [0, 9]
    it.run.tokens(ids, 1.0, 1, reason)
    last = (await it.tokens())[-1]
    assert last.text == ""
    assert last.finish == Finish(reason, "\ufffd")


async def test_a_batch_counts_this_sequence_at_least() -> None:
    it = reading()
    it.run.token(1, 1.0, 0, FinishReason.LENGTH)
    assert [token.batch_size for token in await it.tokens()] == [1]


async def test_without_a_queue_stamp_the_first_token_took_no_time() -> None:
    it = reading()
    it.run.token(1, 5000.0, 1, None)
    it.run.token(2, 5001.0, 1, FinishReason.LENGTH)
    assert [token.latency for token in await it.tokens()] == [0.0, 1.0]


async def test_a_missing_stamp_counts_as_just_now() -> None:
    it = reading()
    it.run.queued(5000.0)
    it.run.token(1, 0.0, 1, None)
    it.run.token(2, 5001.0, 1, FinishReason.LENGTH)
    assert [token.latency for token in await it.tokens()] == [0.0, 1.0]


STAMPS = st.floats(0, 1000, allow_nan=False)
STEPS = st.tuples(st.sampled_from(["queued", "scheduled", "preempted", "token"]), STAMPS)


@given(st.lists(STEPS, max_size=20))
def test_times_are_never_negative_whatever_the_stamps(steps: list[tuple[str, float]]) -> None:
    async def play() -> list[Token]:
        it = reading()
        for kind, at in steps:
            if kind == "token":
                it.run.token(1, at, 1, None)
            else:
                getattr(it.run, kind)(at)
        it.run.token(1, 1000.0, 1, FinishReason.LENGTH)
        return await it.tokens()

    tokens = asyncio.run(play())
    assert all(token.latency >= 0.0 and token.waited >= 0.0 for token in tokens)
    assert sum(token.latency for token in tokens) <= 1000.0 + 1e-6
