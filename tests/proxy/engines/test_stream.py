"""The hand-over of tokens: order, ends, and who wins when several come at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.engines.stream import TokenStream
from tests.support import token
from translators.errors import GatewayError, IncompleteGeneration, ServiceUnavailable
from translators.tokens import FinishReason, Token


class Ends:
    """A stream and the number of times its engine request was cancelled."""

    def __init__(self) -> None:
        self.cancelled = 0
        self.stream = TokenStream(self._cancel)

    def _cancel(self) -> None:
        self.cancelled += 1

    async def read(self) -> list[str]:
        return [each.text async for tokens in self.stream for each in tokens]


async def test_all_tokens_that_are_there_come_at_once() -> None:
    ends = Ends()
    for text in "abc":
        ends.stream.push(token(text))
    assert [each.text for each in await anext(ends.stream)] == ["a", "b", "c"]
    assert ends.stream.idle


async def test_a_finish_ends_it_and_needs_no_cancel() -> None:
    ends = Ends()
    ends.stream.push(token("a"))
    ends.stream.push(token("b", finish=FinishReason.END))
    ends.stream.push(token("too late"))
    assert await ends.read() == ["a", "b"]
    ends.stream.close()
    assert ends.cancelled == 0


async def test_an_error_comes_after_the_tokens_before_it() -> None:
    ends = Ends()
    ends.stream.push(token("a"))
    ends.stream.fail(IncompleteGeneration("broken"))
    ends.stream.raise_if_failed()
    assert [each.text for each in await anext(ends.stream)] == ["a"]
    with pytest.raises(IncompleteGeneration):
        await anext(ends.stream)
    with pytest.raises(IncompleteGeneration):
        ends.stream.raise_if_failed()
    assert ends.cancelled == 1


async def test_the_first_end_wins() -> None:
    ends = Ends()
    ends.stream.stop()
    ends.stream.fail(IncompleteGeneration("too late"))
    ends.stream.close()
    assert await ends.read() == []
    assert ends.cancelled == 1


async def test_a_waiting_reader_is_woken_by_each_end() -> None:
    ways: tuple[Callable[[TokenStream], None], ...] = (
        lambda s: s.push(token("a", finish=FinishReason.END)),
        lambda s: s.stop(),
        lambda s: s.close(),
    )
    for way in ways:
        ends = Ends()
        reading = asyncio.create_task(ends.read())
        await asyncio.sleep(0)
        way(ends.stream)
        async with asyncio.timeout(1):
            await reading


async def test_closing_forgets_what_nobody_reads() -> None:
    ends = Ends()
    ends.stream.push(token("a"))
    ends.stream.close()
    assert await ends.read() == []
    assert ends.cancelled == 1


async def test_it_knows_when_its_last_token_came() -> None:
    ends = Ends()
    before = ends.stream.last_push
    await asyncio.sleep(0.01)
    ends.stream.push(token("a"))
    assert ends.stream.last_push > before
    assert not ends.stream.idle


@given(st.lists(st.one_of(st.integers(0, 9), st.sampled_from(["yield", "fail", "stop"]))))
def test_no_token_is_lost_or_doubled_however_the_reader_lags(steps: list[int | str]) -> None:
    asyncio.run(_play(steps))


async def _play(steps: list[int | str]) -> None:
    stream = TokenStream(lambda: None)
    read: list[Token] = []

    async def reader() -> GatewayError | None:
        try:
            async for tokens in stream:
                assert tokens
                read.extend(tokens)
        except GatewayError as error:
            return error
        return None

    reading = asyncio.create_task(reader())
    pushed, end = await _drive(stream, steps)
    async with asyncio.timeout(1):
        error = await reading
    assert [each.id for each in read] == pushed
    assert (error is not None) is (end == "fail")


async def _drive(stream: TokenStream, steps: list[int | str]) -> tuple[list[int], str]:
    pushed: list[int] = []
    for step in steps:
        if isinstance(step, int):
            pushed.append(len(pushed))
            stream.push(token("", pushed[-1]))
        elif step == "yield":
            await asyncio.sleep(0)
        elif step == "fail":
            stream.fail(ServiceUnavailable("broken"))
            return pushed, "fail"
        else:
            break
    stream.stop()
    return pushed, "stop"
