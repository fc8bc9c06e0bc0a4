"""Tokens that go from the engine's task to the socket keep every rule of the ordinary way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from proxy.engines.base import EngineRequest
from proxy.engines.stream import TokenStream
from proxy.engines.stub import StubEngine
from tests.support import post, serving
from translators.tokens import Finish, FinishReason, Token

pytestmark = pytest.mark.usefixtures("workers")


def _token(number: int, finish: Finish | None = None, text: str | None = None) -> Token:
    return Token(number, f"<{number}>" if text is None else text, 0.001, 0.0, 1, finish)


async def test_a_waiting_reader_leaves_tokens_to_the_taker_but_never_the_end() -> None:
    stream = TokenStream(lambda: None)
    taken: list[int] = []

    def take(token: Token) -> bool:
        taken.append(token.id)
        return True

    stream.hand_to(take)
    stream.push(_token(1))
    assert await anext(stream) == [_token(1)], "nobody waited: the reader gets it"
    reader = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    stream.push(_token(2))
    stream.push(_token(3))
    last = _token(4, Finish(FinishReason.LENGTH))
    stream.push(last)
    assert taken == [2, 3]
    assert await reader == [last]


async def test_a_refused_token_and_all_after_it_stay_in_order() -> None:
    stream = TokenStream(lambda: None)
    stream.hand_to(lambda token: token.id != 2)
    reader = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    for number in (1, 2, 3):
        stream.push(_token(number))
    assert [token.id for token in await reader] == [2, 3]


async def _numbered(request: EngineRequest) -> AsyncIterator[Token]:
    for number in range(1, request.sampling.max_tokens):
        await asyncio.sleep(0)
        yield _token(number)
    yield _token(0, Finish(FinishReason.END))


async def test_every_token_is_one_frame_in_order() -> None:
    async with serving(StubEngine(_numbered)) as running:
        response = await post(
            running.port, {"text_input": "go", "parameters": {"max_new_tokens": 500}}
        )
    texts = [frame["text_output"] for frame in response.frames]
    assert texts == [f"<{number}>" for number in range(1, 500)] + ["<0>"]
    assert response.complete


async def test_a_stop_word_in_the_lane_ends_the_stream_and_the_engine_request() -> None:
    async with serving(StubEngine(_numbered)) as running:
        response = await post(
            running.port,
            {
                "text_input": "go",
                "stop_words": "<7>",
                "parameters": {"max_new_tokens": 500, "details": True},
            },
        )
        cancelled = len(running.engine.cancelled)
    assert "".join(frame["text_output"] for frame in response.frames) == "<1><2><3><4><5><6>"
    assert response.frames[-1]["details"]["finish_reason"] == "eos_token"
    assert response.complete
    assert cancelled == 1
