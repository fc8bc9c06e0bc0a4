"""vLLM's outputs, merged or not, become one token each with plausible times."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.engines.collector import CollectorReader, spread
from tests.proxy.engines.fakes import Reading, Vocabulary, reading
from translators.errors import IncompleteGeneration
from translators.tokens import Finish, FinishReason, Token


def output(
    ids: list[int],
    last: float,
    *,
    first: float = 2.0,
    queued: float = 1.0,
    scheduled: float = 1.5,
    finish: str | None = None,
) -> Any:
    """vLLM's RequestOutput, with the stamps that stand in it at this moment."""
    stamps = SimpleNamespace(
        queued_ts=queued, scheduled_ts=scheduled, first_token_ts=first, last_token_ts=last
    )
    completion = SimpleNamespace(token_ids=ids, finish_reason=finish, logprobs=None)
    return SimpleNamespace(metrics=stamps, outputs=[completion])


def reader() -> tuple[CollectorReader, Reading]:
    it = reading()
    return CollectorReader(it.run, Vocabulary()), it


async def test_single_tokens_have_their_own_times() -> None:
    collector, it = reader()
    collector.read(output([1], 2.0), 3)
    collector.read(output([2], 2.5), 2)
    collector.read(output([3], 2.75, finish="stop"), 1)
    assert await it.tokens() == [
        Token(1, "a", 1.0, 0.5, 3),
        Token(2, "b", 0.5, 0.0, 2),
        Token(3, "", 0.25, 0.0, 1, Finish(FinishReason.END)),
    ]


async def test_merged_tokens_are_spread_between_what_is_known() -> None:
    collector, it = reader()
    collector.read(output([1, 2, 3], 3.0), 1)
    collector.read(output([4, 5], 4.0, finish="length"), 1)
    tokens = await it.tokens()
    assert [token.text for token in tokens] == list("abcde")
    assert [token.latency for token in tokens] == [1.0, 0.5, 0.5, 0.5, 0.5]
    assert [token.waited for token in tokens] == [0.5, 0.0, 0.0, 0.0, 0.0]
    assert [token.finish for token in tokens[:-1]] == [None] * 4


async def test_without_stamps_the_first_token_took_no_time() -> None:
    collector, it = reader()
    collector.read(output([1, 2], 9000.0, first=0.0, queued=0.0, scheduled=0.0), 1)
    collector.read(output([3], 9001.0, finish="length"), 1)
    assert [(t.latency, t.waited) for t in await it.tokens()] == [
        (0.0, 0.0),
        (0.0, 0.0),
        (1.0, 0.0),
    ]


async def test_an_end_without_tokens_is_a_normal_stop() -> None:
    collector, it = reader()
    collector.read(output([], 0.0), 1)
    assert it.run.stream.idle
    collector.read(output([1], 2.0), 1)
    collector.read(output([], 2.0, finish="abort"), 1)
    assert [token.id for token in await it.tokens()] == [1]
    assert it.cancelled == ["r1"]


async def test_an_engine_error_breaks_the_stream() -> None:
    collector, it = reader()
    collector.read(output([1], 2.0, finish="error"), 1)
    with pytest.raises(IncompleteGeneration):
        await it.tokens()


@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=8),
    st.lists(st.floats(0.0, 1.0), min_size=8, max_size=8),
)
def test_merging_loses_no_token_and_no_time(sizes: list[int], gaps: list[float]) -> None:
    async def play() -> list[Token]:
        collector, it = reader()
        last = 2.0
        for index, size in enumerate(sizes):
            last += gaps[index]
            ends = "length" if index == len(sizes) - 1 else None
            collector.read(output([1] * size, last, finish=ends), 1)
        return await it.tokens()

    tokens = asyncio.run(play())
    assert len(tokens) == sum(sizes)
    assert all(token.latency >= 0.0 for token in tokens)
    assert sum(t.latency for t in tokens) == pytest.approx(1.0 + sum(gaps[: len(sizes)]))
    assert [index for index, token in enumerate(tokens) if token.finish] == [len(tokens) - 1]


@pytest.mark.parametrize(
    ("arguments", "times"),
    [
        ((1, 5.0, None, 5.0), [5.0]),
        ((3, 5.0, None, 6.0), [5.0, 5.5, 6.0]),
        ((1, None, 5.0, 6.0), [6.0]),
        ((4, None, 5.0, 6.0), [5.25, 5.5, 5.75, 6.0]),
        ((2, None, None, 6.0), [6.0, 6.0]),
        ((2, 7.0, None, 6.0), [6.0, 6.0]),
        ((2, None, 7.0, 6.0), [6.0, 6.0]),
    ],
)
def test_spread(arguments: tuple[int, float, float, float], times: list[float]) -> None:
    assert spread(*arguments) == times


STAMP = st.floats(0, 1e6)


@given(st.integers(1, 50), st.none() | STAMP, st.none() | STAMP, STAMP)
def test_spread_never_goes_back_and_ends_at_the_last(
    count: int, first: float | None, previous: float | None, last: float
) -> None:
    times = spread(count, first, previous, last)
    assert len(times) == count
    assert times[-1] == last
    assert all(a <= b + 1e-6 for a, b in pairwise(times))
