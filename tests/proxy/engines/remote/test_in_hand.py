"""Tokens that have been read when their stream ends: they come first, and nothing waits for them.

The reader is caught with tokens in hand while it asks their texts of an upstream
whose /detokenize answers when the test lets it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import orjson
import pytest

from proxy.engines.remote import probe, spelling
from proxy.engines.remote import stream as remote_stream
from proxy.engines.remote.stream import RemoteStream
from tests.fake_vllm import EVENT_STREAM, Call, fake_vllm
from tests.proxy.engines.remote.sidecar import Sidecar, ask, sidecar
from tests.proxy.engines.remote.test_faults import status
from tests.support import (
    MODEL,
    STOP_PATH,
    STREAM_PATH,
    RawResponse,
    eventually,
    generate_body,
    post,
)

FAR_OFF: Final = 60.0
"""Seconds after which a test would long have failed."""
BODY: Final = {"id": "mine", **generate_body("x", 9, details=True)}


@pytest.fixture
def _endless_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is prompt is not so because somebody lost patience."""
    monkeypatch.setattr(probe, "SOON", FAR_OFF)
    monkeypatch.setattr(spelling, "_PATIENCE", FAR_OFF)
    monkeypatch.setattr(remote_stream, "_REST", FAR_OFF)


@dataclass
class Dictionary:
    """/detokenize, whose answers wait for a gate."""

    asked: asyncio.Event = field(default_factory=asyncio.Event)
    gate: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, call: Call) -> None:
        self.asked.set()
        await self.gate.wait()
        ids = orjson.loads(call.document["body"])["tokens"]
        body = orjson.dumps({"prompt": call.server.tokenizer.decode(ids)})
        await call.send(b"HTTP/1.1 200 X\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))


Rest = Callable[[Call, list[int]], Awaitable[None]]


@dataclass
class Held:
    """A request of which one token went out, and two more are in hand."""

    opened: Sidecar
    stream: RemoteStream
    dictionary: Dictionary
    response: asyncio.Task[RawResponse]

    async def stop(self) -> None:
        assert (await post(self.opened.port, {"id": "mine"}, STOP_PATH)).status == 200


def streams(opened: Sidecar) -> list[RemoteStream]:
    live = opened.running.gateway.live._ids
    # Not what is on its way to the server yet.
    return [stream for stream in live if isinstance(stream, RemoteStream)]


async def first(call: Call, ids: list[int]) -> None:
    """The first token; what follows waits until the test has seen it."""
    await call.send(EVENT_STREAM)
    await call.event(call.tokens(ids[:1], " a", first=True))
    await call.server.gate.wait()


@asynccontextmanager
async def holding(
    rest: Rest,
    *,
    path: str = STREAM_PATH,
    queue_time_ms: float | None = None,
    long_ago: bool = False,
    **settings: Any,
) -> AsyncIterator[Held]:
    """` a` went out, ` b c` is being told apart, and then the upstream goes on with `rest`.

    With `long_ago` the first token is taken to have come when time began.
    """

    async def answer(call: Call) -> None:
        ids = call.server.tokenizer.encode(" a b c d e")
        await first(call, ids)
        await call.event(call.tokens(ids[1:3], " b c"))
        await rest(call, ids[3:])

    dictionary = Dictionary()
    async with (
        fake_vllm(names=(MODEL,), answer=answer, queue_time_ms=queue_time_ms) as server,
        sidecar(server, options={"check_period": FAR_OFF}, **settings) as opened,
    ):
        server.others["/detokenize"] = dictionary
        server.gate.clear()
        response = asyncio.create_task(post(opened.port, BODY, path))
        await eventually(lambda: any(stream._count for stream in streams(opened)))
        (stream,) = streams(opened)
        if long_ago:
            stream.last_push = 0.0
        server.gate.set()
        await dictionary.asked.wait()
        yield Held(opened, stream, dictionary, response)
        await asyncio.wait({response})


async def silent(call: Call, ids: list[int]) -> None:
    await call.gone.wait()


async def two_more(call: Call, ids: list[int]) -> None:
    await call.event(call.tokens(ids[:1], " d"))
    await call.event(call.tokens(ids[1:2], " e"))


async def resets(call: Call) -> None:
    call.reset()


async def closes(call: Call) -> None:
    call.writer.close()


async def writes_nonsense(call: Call) -> None:
    await call.send(b"zzz\r\n")
    await call.gone.wait()


BREAKS: Final = (resets, closes, writes_nonsense)


async def broken(held: Held) -> None:
    """Wait until the connection's end is known, and what came before it is not read yet."""
    await eventually(held.stream._response.content.exception)
    held.dictionary.gate.set()


@pytest.mark.usefixtures("_endless_patience")
@pytest.mark.parametrize("breaks", BREAKS)
async def test_what_came_before_a_connection_broke_comes_before_the_failure(
    breaks: Callable[[Call], Awaitable[None]],
) -> None:
    async def rest(call: Call, ids: list[int]) -> None:
        await two_more(call, ids)
        await breaks(call)

    async with holding(rest) as held:
        await broken(held)
        response = await held.response
        assert not response.complete
        assert response.texts == [" a", " b", " c", " d", " e", ""]
        assert response.frames[-1]["err_msg"]
        assert response.frames[-1]["details"]["generated_tokens"] == 5
        await held.opened.settled(failed=1)


@pytest.mark.usefixtures("_endless_patience")
async def test_what_is_left_of_a_broken_answer_may_be_much() -> None:
    """More than is read at once."""
    count = 90

    async def rest(call: Call, ids: list[int]) -> None:
        for _ in range(count):
            await call.event(call.tokens(ids[:1], " d"))
        call.writer.close()

    async with holding(rest) as held:
        content = held.stream._response.content
        await eventually(content.exception)
        assert content._size > remote_stream._BLOCK
        held.dictionary.gate.set()
        response = await held.response
        assert response.texts == [" a", " b", " c", *[" d"] * count, ""]


@pytest.mark.usefixtures("_endless_patience")
@pytest.mark.parametrize("breaks", BREAKS)
@pytest.mark.parametrize("queue_time_ms", [None, 1.0], ids=["no queue time", "queue time"])
@pytest.mark.parametrize("done", [False, True], ids=["finish", "[DONE]"])
async def test_an_answer_that_had_its_finish_when_its_connection_broke_is_a_success(
    breaks: Callable[[Call], Awaitable[None]], queue_time_ms: float | None, done: bool
) -> None:
    async def rest(call: Call, ids: list[int]) -> None:
        await call.event(call.tokens(ids[:1], " d", reason="length"))
        if done:
            await call.chunk(b"data: [DONE]\n\n")
        await breaks(call)

    async with holding(rest, queue_time_ms=queue_time_ms) as held:
        await broken(held)
        response = await held.response
        assert response.complete
        assert response.texts == [" a", " b", " c", " d"]
        assert response.frames[-1]["details"]["finish_reason"] == "length"
        await held.opened.settled(succeeded=1)


@pytest.mark.usefixtures("_endless_patience")
@pytest.mark.parametrize(("reason", "code"), [("length", 200), (None, 500)])
async def test_an_answer_in_one_piece_is_there_if_its_finish_was(
    reason: str | None, code: int
) -> None:
    async def rest(call: Call, ids: list[int]) -> None:
        await call.event(call.tokens(ids[:1], " d", reason=reason))
        call.writer.close()

    async with holding(rest, path=f"/v2/models/{MODEL}/generate") as held:
        await broken(held)
        response = await held.response
        assert response.status == code
        assert code != 200 or response.json["text_output"] == " a b c d"


@pytest.mark.usefixtures("_endless_patience")
async def test_stop_infer_does_not_wait_and_loses_no_token() -> None:
    async with holding(silent) as held:
        await held.stop()
        response = await held.response
        assert response.complete
        assert response.texts == [" a", "", " b c", ""]
        last = response.frames[-1]["details"]
        assert (last["finish_reason"], last["generated_tokens"]) == ("stop_sequence", 3)
        (call,) = held.opened.server.calls
        await asyncio.wait_for(call.gone.wait(), 1)
        await held.opened.settled(succeeded=2)


@pytest.mark.usefixtures("_endless_patience")
@pytest.mark.parametrize("settings", [{"e2e_timeout": 1.0}, {"token_timeout": 1.0}])
async def test_a_clock_does_not_wait_and_loses_no_token(settings: dict[str, Any]) -> None:
    async with holding(silent, **settings) as held:
        response = await held.response
        assert not response.complete
        assert response.texts == [" a", "", " b c", ""]
        last = response.frames[-1]
        assert last["err_msg"].startswith("server ")
        assert last["details"]["generated_tokens"] == 3
        (call,) = held.opened.server.calls
        await asyncio.wait_for(call.gone.wait(), 1)
        await held.opened.settled(failed=1)


@pytest.mark.usefixtures("_endless_patience")
async def test_the_first_of_two_ends_wins() -> None:
    async with holding(silent) as held:
        held.stream.stop()
        held.stream.fail(AssertionError())  # type: ignore[arg-type]  # nobody ever sees it
        assert (await held.response).complete


@pytest.mark.usefixtures("_endless_patience")
async def test_an_end_that_comes_as_the_wait_runs_out() -> None:
    loop = asyncio.get_running_loop()
    async with holding(silent) as held:
        assert held.stream._limit is not None
        held.stream._limit.reschedule(loop.time())
        # Between the end of the wait and the reader's next step.
        loop.call_soon(held.stream.stop)
        response = await held.response
        assert response.complete
        assert response.texts == [" a", "", " b c", ""]


@pytest.mark.usefixtures("_endless_patience")
async def test_a_client_that_leaves_with_tokens_in_hand_frees_everything() -> None:
    async with holding(silent) as held:
        held.response.cancel()
        await held.opened.settled(cancelled=1)
        (call,) = held.opened.server.calls
        await asyncio.wait_for(call.gone.wait(), 1)


@pytest.mark.usefixtures("_endless_patience")
async def test_tokens_in_hand_have_come_in_time() -> None:
    """The clock of the next token starts when tokens come, not when they are told apart."""
    async with holding(silent, long_ago=True) as held:
        assert held.stream.last_push > 0
        await held.stop()


@pytest.mark.usefixtures("_endless_patience")
@pytest.mark.parametrize("queue_time_ms", [None, 1.0], ids=["no queue time", "queue time"])
async def test_a_finish_that_was_read_before_the_stop_is_the_end(
    queue_time_ms: float | None,
) -> None:
    async def answer(call: Call) -> None:
        ids = call.server.tokenizer.encode(" a b c d e")
        await first(call, ids)
        events = (
            call.tokens(ids[1:3], " b c"),
            call.tokens(ids[3:], " d e", reason="length"),
        )
        await call.chunk(b"".join(b"data: %b\n\n" % orjson.dumps(event) for event in events))
        await call.gone.wait()

    async with holding(silent, queue_time_ms=queue_time_ms) as held:
        await held.stop()
        await held.response
        held.opened.server.answer = answer
        held.dictionary.asked.clear()
        held.opened.server.gate.clear()
        again = asyncio.create_task(post(held.opened.port, BODY))
        await eventually(lambda: any(stream._count for stream in streams(held.opened)))
        held.opened.server.gate.set()
        await held.dictionary.asked.wait()
        await held.stop()
        response = await again
        assert response.complete
        assert response.texts == [" a", "", " b c", "", " d e"]
        assert response.frames[-1]["details"]["finish_reason"] == "length"


@pytest.mark.usefixtures("_endless_patience")
async def test_a_last_token_that_waits_for_its_queue_time_is_not_lost() -> None:
    async def answer(call: Call) -> None:
        ids = call.server.tokenizer.encode(" a b")
        await first(call, ids)
        await call.event(call.tokens(ids[1:], " b", reason="length"))
        await call.gone.wait()

    async with (
        fake_vllm(names=(MODEL,), answer=answer, queue_time_ms=1.0) as server,
        sidecar(server) as opened,
    ):
        asking = asyncio.create_task(post(opened.port, BODY))
        await eventually(lambda: any(stream._last for stream in streams(opened)))
        assert (await post(opened.port, {"id": "mine"}, STOP_PATH)).status == 200
        response = await asking
        assert response.complete
        assert response.texts == [" a", " b"]
        assert response.frames[-1]["details"]["finish_reason"] == "length"
        await opened.settled(succeeded=2)


async def test_an_upstream_that_only_comments_after_the_last_token_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """vLLM's --sse-keep-alive-interval, and no queue time ever."""
    monkeypatch.setattr(remote_stream, "_REST", 0.2)

    async def answer(call: Call) -> None:
        await call.send(EVENT_STREAM)
        await call.event(call.tokens([300], "one", reason="length", first=True))
        while True:
            await call.chunk(b": keep-alive\n\n")
            await asyncio.sleep(0.02)

    async with (
        fake_vllm(names=(MODEL,), answer=answer, queue_time_ms=1.0) as server,
        sidecar(server) as opened,
    ):
        response = await post(opened.port, BODY)
        assert response.complete
        assert response.texts == ["one"]
        await asyncio.wait_for(server.calls[0].gone.wait(), 3)


@asynccontextmanager
async def merging() -> AsyncIterator[Sidecar]:
    """An upstream that merges tokens, and is only looked at when the test says so."""
    async with (
        fake_vllm(names=(MODEL,), per_chunk=2, pace=0.0) as server,
        sidecar(server, options={"check_period": FAR_OFF}) as opened,
    ):
        yield opened


async def texts(opened: Sidecar, text: str) -> list[str]:
    response = await ask(opened, text, 5)
    assert response.complete
    return list(response.texts)


async def test_a_detokenizer_that_does_not_answer_is_waited_for_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probe, "SOON", 0.1)
    async with merging() as opened:
        server, dictionary = opened.server, Dictionary()
        (upstream,) = opened.engine._upstreams
        assert await texts(opened, " a b c d e") == [" a", " b", " c", " d", " e"]
        server.others["/detokenize"] = dictionary
        before = server.asked.count("/detokenize")

        for _ in range(2):
            assert await texts(opened, " 1 2 3 4 5") == [" 1", "", " 2 3", "", " 4 5"]
        assert server.asked.count("/detokenize") == before + 1
        assert await texts(opened, " a b c d e") == [" a", " b", " c", " d", " e"], "are known"

        for looks in (2, 3):
            upstream.suspect()
            asked = before + looks
            await eventually(lambda asked=asked: server.asked.count("/detokenize") == asked)
        dictionary.gate.set()
        await eventually(lambda: upstream._spelling._answers)
        assert await texts(opened, " 1 2 3 4 5") == [" 1", " 2", " 3", " 4", " 5"]


async def test_a_detokenizer_that_fails_when_the_server_comes_up_is_asked_again() -> None:
    async with (
        fake_vllm(
            names=(MODEL,), per_chunk=2, pace=0.0, others={"/detokenize": status(500)}
        ) as server,
        sidecar(server, options={"check_period": FAR_OFF}) as opened,
    ):
        del server.others["/detokenize"]
        assert await texts(opened, " a b c d e") == [" a", " b", " c", " d", " e"]


async def test_a_chunk_of_many_slow_answers_does_not_wait_for_all_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its tokens go out whole, and the server goes on being asked: it does answer."""
    monkeypatch.setattr(spelling, "_PATIENCE", 0.2)
    monkeypatch.setattr(probe, "SOON", FAR_OFF)
    async with merging() as opened:
        opened.server.others["/detokenize"] = Dictionary()
        assert await texts(opened, " a b c d e") == [" a", "", " b c", "", " d e"]
        del opened.server.others["/detokenize"]
        assert await texts(opened, " a b c d e") == [" a", " b", " c", " d", " e"]
