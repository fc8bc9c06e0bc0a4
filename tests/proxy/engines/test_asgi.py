"""The bridge to an ASGI application, with applications of the test's own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from proxy.engines.asgi import Application, AsgiApi
from proxy.engines.openai import OpenAIAnswer, OpenAIRequest
from proxy.logs import ConsoleFormatter
from tests.support import eventually
from translators.errors import IncompleteGeneration

START = {"type": "http.response.start", "status": 201, "headers": [(b"x-a", b"1"), (b"x-a", b"2")]}


def body(data: bytes, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": data, "more_body": more}


async def opened(
    application: Application, target: str = "/v1/x", data: bytes = b""
) -> OpenAIAnswer:
    request = OpenAIRequest("POST", target, (("X-B", "é"), ("Accept", "y")), data)
    return await AsgiApi(application).open(request)


async def whole(answer: OpenAIAnswer) -> bytes:
    return b"".join([block async for block in answer.blocks()])


async def test_the_application_sees_the_request() -> None:
    seen: dict[str, Any] = {}

    async def application(scope: Any, receive: Any, send: Any) -> None:
        seen.update(scope, body=(await receive())["body"])
        await send(START)
        await send(body(b"done"))

    answer = await opened(application, "/v1/a%20b?c=%2F", b"data")
    assert (answer.status, answer.headers) == (201, (("x-a", "1"), ("x-a", "2")))
    assert await whole(answer) == b"done"
    assert seen["path"] == "/v1/a b"
    assert seen["raw_path"] == b"/v1/a%20b"
    assert seen["query_string"] == b"c=%2F"
    assert seen["headers"] == [(b"x-b", "é".encode()), (b"accept", b"y")]
    assert seen["body"] == b"data"
    assert seen["method"] == "POST"


async def test_blocks_come_while_the_application_goes_on() -> None:
    go_on = asyncio.Event()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        await send(body(b"one", more=True))
        await go_on.wait()
        await send(body(b"two"))

    blocks = (await opened(application)).blocks()
    assert await anext(blocks) == b"one"
    go_on.set()
    assert [block async for block in blocks] == [b"two"]


async def test_an_application_ahead_of_its_reader_waits() -> None:
    sent = 0

    async def application(scope: Any, receive: Any, send: Any) -> None:
        nonlocal sent
        await send(START)
        for _ in range(100):
            await send(body(b"x" * 10_000, more=True))
            sent += 1
        await send(body(b""))

    answer = await opened(application)
    await asyncio.sleep(0.01)
    assert sent < 10
    assert len(await whole(answer)) == 1_000_000


async def test_a_reader_that_leaves_is_told_of() -> None:
    told: list[Any] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send(START)
        told.append(await receive())
        await send(body(b"x" * 1_000_000, more=True))
        await send(body(b"nobody reads it"))
        told.append("ended")

    answer = await opened(application)
    answer.close()
    await eventually(lambda: told == [{"type": "http.disconnect"}, "ended"])
    answer.close()


async def test_whoever_gives_up_before_the_answer_is_told_of() -> None:
    told = asyncio.Event()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await receive()
        told.set()

    opening = asyncio.create_task(opened(application))
    await asyncio.sleep(0)
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await asyncio.wait_for(told.wait(), 1)


@pytest.mark.logs_errors
async def test_a_failure_before_the_answer(caplog: pytest.LogCaptureFixture) -> None:
    secret = "x" + "yzzy"  # not as the line below has it, which a traceback shows

    async def application(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError(secret)

    with pytest.raises(IncompleteGeneration) as caught:
        await opened(application)
    assert secret not in str(caught.value)
    (record,) = (record for record in caplog.records if record.exc_info)
    assert secret not in ConsoleFormatter().format(record)


@pytest.mark.logs_errors
async def test_a_failure_within_the_answer_comes_after_what_was_sent() -> None:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        await send(body(b"one", more=True))
        raise RuntimeError

    blocks = (await opened(application)).blocks()
    assert await anext(blocks) == b"one"
    with pytest.raises(IncompleteGeneration):
        await anext(blocks)


async def test_an_answer_without_an_end_is_no_success() -> None:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        await send(body(b"one", more=True))

    answer = await opened(application)
    with pytest.raises(IncompleteGeneration):
        await whole(answer)


async def test_no_answer_at_all() -> None:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        await receive()

    with pytest.raises(IncompleteGeneration):
        await opened(application)


async def test_closing_ends_what_runs() -> None:
    ended = asyncio.Event()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await send(START)
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    api = AsgiApi(application)
    await api.open(OpenAIRequest("GET", "/v1/x", (), b""))
    await api.close()
    await asyncio.wait_for(ended.wait(), 1)
