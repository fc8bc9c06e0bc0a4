"""What becomes of a request when its upstream misbehaves (docs/sidecar.md has the table).

An answer before the first byte is plain JSON with a status; after it, an error
frame and a dropped connection (contract §5). Each fault frees everything.
"""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest

from proxy.gateway import State
from tests.fake_vllm import EVENT_STREAM, Answer, Call, fake_vllm
from tests.proxy.engines.remote.sidecar import Sidecar, ask, faulty, sidecar
from tests.proxy.test_app import assert_error
from tests.support import (
    MODEL,
    STOP_PATH,
    connection,
    eventually,
    frame_json,
    generate_body,
    post,
    request_bytes,
)

BODY = generate_body("one two", 3, details=True)


async def first_token(call: Call) -> None:
    """The head and one good token; what follows waits for the test, if it says so."""
    await call.send(EVENT_STREAM)
    await call.event(call.tokens([300], "one", first=True))
    await call.server.gate.wait()


async def good(call: Call) -> None:
    """Three tokens as vLLM sends them."""
    await first_token(call)
    await call.event(call.tokens([301], " two"))
    await call.event(call.tokens([302], " three", reason="length"))
    await call.end()


def status(code: int, *headers: str) -> Answer:
    """An answer with this status and a body that must not be shown."""

    async def answer(call: Call) -> None:
        lines = "".join(f"{header}\r\n" for header in headers)
        body = b'{"error":{"message":"the secret prompt"}}'
        head = f"HTTP/1.1 {code} X\r\n{lines}content-length: {len(body)}\r\n\r\n"
        await call.send(head.encode() + body)

    return answer


def raw(head: bytes, body: bytes = b"") -> Answer:
    """These bytes, then the end of the connection."""

    async def answer(call: Call) -> None:
        await call.send(head + body)
        call.writer.close()

    return answer


def after_a_token(rest: bytes) -> Answer:
    """One good token, then these bytes as a chunk, then nothing any more."""

    async def answer(call: Call) -> None:
        await first_token(call)
        await call.chunk(rest)
        await call.gone.wait()

    return answer


async def reset(call: Call) -> None:
    call.reset()


async def reset_after_the_head(call: Call) -> None:
    await call.send(EVENT_STREAM)
    call.reset()


async def error_at_once(call: Call) -> None:
    await call.send(EVENT_STREAM)
    await call.event({"error": {"message": "Token id 9 is out of vocabulary", "code": 400}})
    await call.end()


async def failure_at_once(call: Call) -> None:
    await call.send(EVENT_STREAM)
    await call.event({"error": {"message": "EngineCore died", "code": 500}})
    await call.end()


async def nothing_at_all(call: Call) -> None:
    await call.send(EVENT_STREAM)
    await call.end()


GZIP = gzip.compress(b'data: {"choices":[{"text":"x","finish_reason":"stop"}]}\n\n')
BEFORE = {
    "reset before the head": (reset, 500, None),
    "reset after the head": (reset_after_the_head, 500, None),
    "400": (status(400), 424, None),
    "401": (status(401), 424, None),
    "404": (status(404), 424, None),
    "413": (status(413), 424, None),
    "422": (status(422), 424, None),
    "429 with Retry-After": (status(429, "Retry-After: 17"), 503, "17"),
    "429 without": (status(429), 503, "1"),
    "429 with nonsense": (status(429, "Retry-After: soon"), 503, "1"),
    "429 with a date long gone": (
        status(429, "Retry-After: Wed, 21 Oct 2015 07:28:00 GMT"),
        503,
        "1",
    ),
    "429 with a huge number": (status(429, "Retry-After: " + "9" * 5000), 503, "3600"),
    "500": (status(500), 500, None),
    "502": (status(502), 500, None),
    "503": (status(503, "Retry-After: 2"), 503, "2"),
    "redirect": (status(307, "Location: http://127.0.0.1:9/"), 500, None),
    "204": (raw(b"HTTP/1.1 204 No Content\r\n\r\n"), 500, None),
    "no stream": (
        raw(b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 2\r\n\r\nhi"),
        500,
        None,
    ),
    "gzip": (
        raw(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-encoding: gzip\r\n"
            b"content-length: %d\r\n\r\n" % len(GZIP),
            GZIP,
        ),
        500,
        None,
    ),
    "no HTTP": (raw(b"SSH-2.0-OpenSSH_9.6\r\n\r\n"), 500, None),
    "a giant head": (raw(b"HTTP/1.1 200 OK\r\nx: " + b"y" * 1_000_000 + b"\r\n\r\n"), 500, None),
    "error object at once, the client's": (error_at_once, 424, None),
    "error object at once, the server's": (failure_at_once, 500, None),
    "an empty stream": (nothing_at_all, 500, None),
}


@pytest.mark.parametrize(("answer", "code", "retry_after"), BEFORE.values(), ids=BEFORE.keys())
async def test_before_the_first_byte_it_is_plain_json(
    answer: Answer, code: int, retry_after: str | None
) -> None:
    async with faulty(answer) as opened:
        response = await post(opened.port, BODY)
        assert response.status == code, response.body
        assert response.complete
        assert response.headers["content-type"] == "application/json"
        assert response.headers.get("retry-after") == retry_after
        assert set(response.json) == {"error", "error_type"}
        assert b"secret" not in response.body
        await opened.settled(**{"failed" if code == 500 else "refused": 1})
        opened.server.answer = good
        assert (await post(opened.port, BODY)).complete, "the next request must work"


def chunk(**choice: Any) -> bytes:
    values = {"text": " two", "finish_reason": None, "token_ids": [301], **choice}
    return b"data: " + orjson.dumps({"choices": [values]}) + b"\n\n"


AFTER = {
    "bad JSON": b"data: {nonsense}\n\n",
    "invalid UTF-8": b'data: {"choices":[{"text":"\xff","token_ids":[1]}]}\n\n',
    "a JSON array": b"data: [1]\n\n",
    "a JSON number": b"data: 5\n\n",
    "choices that are none": b'data: {"choices":5}\n\n',
    "a choice that is none": b'data: {"choices":[5]}\n\n',
    "no text": b'data: {"choices":[{"token_ids":[5]}]}\n\n',
    "text of the wrong type": chunk(text=5),
    "ids of the wrong type": chunk(token_ids=["x"]),
    "ids that are booleans": chunk(token_ids=[True]),
    "usage of the wrong type": chunk(token_ids=None)[:-3] + b',"usage":"x"}\n\n',
    "a 2 MB line": chunk(text="x" * 2_000_000),
    "a line without an end": b"data: " + b"x" * 400_000,
    "an error object": b'data: {"error":{"message":"died","code":500}}\n\n',
    "an error object without a code": b'data: {"error":"died"}\n\n',
    "a finish that is an error": chunk(finish_reason="error"),
    "[DONE] without a finish": b"data: [DONE]\n\n",
}


@pytest.mark.parametrize("rest", AFTER.values(), ids=AFTER.keys())
async def test_after_the_first_byte_it_is_an_error_frame_and_a_dropped_connection(
    rest: bytes,
) -> None:
    async with faulty(after_a_token(rest)) as opened:
        await _is_broken_after_one_token(opened)


async def _is_broken_after_one_token(opened: Sidecar) -> None:
    opened.server.gate.clear()
    async with connection(opened.port) as client:
        client.send(request_bytes(BODY))
        assert (await client.head()).status == 200
        good_one = frame_json(await client.chunk())
        opened.server.gate.set()
        response = await client.response_body()
    assert not response.complete, "nobody may take it for a success"
    (broken,) = response.frames
    assert good_one["text_output"] == "one"
    assert broken["text_output"] == ""
    assert broken["details"]["finish_reason"] == "stop_sequence"
    assert broken["details"]["generated_tokens"] == 1
    assert broken["err_msg"]
    assert broken["error_type"] == "Incomplete Generation"
    await opened.settled(failed=1)
    (call,) = opened.server.calls
    await asyncio.wait_for(call.gone.wait(), 1)


async def _reset_later(call: Call) -> None:
    await first_token(call)
    call.reset()


async def _end_early(call: Call) -> None:
    await first_token(call)
    await call.send(b"0\r\n\r\n")
    await call.gone.wait()


async def _half_a_chunk(call: Call) -> None:
    await first_token(call)
    await call.send(b"100\r\ndata: {")
    call.writer.close()


async def _half_an_event(call: Call) -> None:
    await first_token(call)
    await call.chunk(b'data: {"choices":[{"text":"x","finish_')
    await call.send(b"0\r\n\r\n")
    await call.gone.wait()


async def _broken_chunking(call: Call) -> None:
    await first_token(call)
    await call.send(b"zzz\r\n")
    await call.gone.wait()


@pytest.mark.parametrize(
    "answer", [_reset_later, _end_early, _half_a_chunk, _half_an_event, _broken_chunking]
)
async def test_a_stream_that_is_cut_off_is_no_success(answer: Answer) -> None:
    async with faulty(answer) as opened:
        await _is_broken_after_one_token(opened)


async def test_an_endless_line_is_cut_off_while_it_comes() -> None:
    sent = 0

    async def answer(call: Call) -> None:
        nonlocal sent
        await first_token(call)
        await call.chunk(b"data: ")
        while True:
            await call.chunk(b"x" * 10_000)
            sent += 10_000

    async with faulty(answer) as opened:
        await _is_broken_after_one_token(opened)
    assert sent < 16_000_000, "as much as sockets hold, and no more"


async def test_a_failure_in_the_server_contract_is_its_raw_text() -> None:
    async with faulty(
        after_a_token(b"data: {nonsense}\n\n"), contract="server", media_from_any_host=True
    ) as opened:
        response = await post(opened.port, BODY)
    assert response.complete
    assert response.chunks[-1] == b"Failed to get engine response"


async def test_nobody_listens_any_more() -> None:
    """The same answer as for an engine that is not ready; the process stays."""
    async with sidecar(options={"check_period": 60.0}) as opened:
        await opened.server.stop()
        response = await post(opened.port, BODY)
        assert response.status == 503
        assert response.headers["retry-after"] == "1"
        assert response.json["error_type"] == "Service Unavailable"
        await opened.settled(refused=1)


async def test_a_connection_that_breaks_before_the_head_is_tried_again_once() -> None:
    async def answer(call: Call) -> None:
        if len(call.server.calls) == 1:
            call.reset()
        else:
            await good(call)

    async with faulty(answer) as opened:
        response = await post(opened.port, BODY)
        assert response.complete
        assert response.texts == ["one", " two", " three"]
        first, second = opened.server.calls
        assert first.document["request_id"] != second.document["request_id"]


async def test_a_connection_that_breaks_every_time_is_tried_twice() -> None:
    async with faulty(reset) as opened:
        assert (await post(opened.port, BODY)).status == 500
        assert len(opened.server.calls) == 2


async def test_nothing_is_tried_again_once_the_head_has_come() -> None:
    for answer in (reset_after_the_head, _reset_later, status(500), status(429), status(400)):
        async with faulty(answer) as opened:
            await post(opened.port, BODY)
            assert len(opened.server.calls) == 1


async def test_a_kept_connection_that_dies_at_the_moment_of_reuse() -> None:
    """As a server does that closes an idle connection while the request is on its way."""

    async def answer(call: Call) -> None:
        if len(call.server.calls) == 2:
            call.writer.close()
        else:
            await good(call)

    async with faulty(answer) as opened:
        for _ in range(2):
            response = await post(opened.port, BODY)
            assert response.complete
            assert response.texts == ["one", " two", " three"]
        assert len(opened.server.calls) == 3
        await opened.settled(succeeded=2)


async def silent_before_the_head(call: Call) -> None:
    await call.gone.wait()


async def test_silence_before_the_head_ends_with_the_clock() -> None:
    async with faulty(silent_before_the_head, token_timeout=0.1) as opened:
        response = await post(opened.port, BODY)
        assert response.status == 500
        assert "server tokenTimeout" in response.json["error"]
        await opened.settled(failed=1)
        (call,) = opened.server.calls
        await asyncio.wait_for(call.gone.wait(), 1)


async def _silent_after_the_head(call: Call) -> None:
    await call.send(EVENT_STREAM)
    await call.gone.wait()


async def _silent_after_a_token(call: Call) -> None:
    await first_token(call)
    await call.gone.wait()


@pytest.mark.parametrize(
    ("answer", "tokens"), [(_silent_after_the_head, 0), (_silent_after_a_token, 1)]
)
async def test_silence_within_a_stream_ends_with_the_clock(answer: Answer, tokens: int) -> None:
    async with faulty(answer, token_timeout=0.3) as opened:
        response = await post(opened.port, BODY)
        assert response.status == 200
        assert not response.complete
        assert len(response.frames) == tokens + 1
        assert "server tokenTimeout" in response.frames[-1]["err_msg"]
        await opened.settled(failed=1)
        (call,) = opened.server.calls
        await asyncio.wait_for(call.gone.wait(), 1)


async def test_keep_alive_comments_are_no_tokens() -> None:
    """vLLM's --sse-keep-alive-interval: they neither show nor stop a clock."""

    async def answer(call: Call) -> None:
        await call.send(EVENT_STREAM)
        while True:
            await call.chunk(b": keep-alive\n\n")
            await asyncio.sleep(0.02)

    async with faulty(answer, token_timeout=0.3) as opened:
        response = await post(opened.port, BODY)
        assert len(response.frames) == 1
        assert "server tokenTimeout" in response.frames[-1]["err_msg"]


async def _in_pieces(call: Call, cut: Callable[[bytes], list[bytes]]) -> None:
    """A good stream with characters of several bytes, its bytes cut anywhere."""
    events = [
        call.tokens([1], "é", first=True),
        call.tokens([2], "你好"),
        call.tokens([3], "😀", reason="stop"),
    ]
    body = b"".join(b"data: " + orjson.dumps(event) + b"\n\n" for event in events)
    await call.send(EVENT_STREAM)
    for piece in cut(body + b"data: [DONE]\n\n"):
        await call.chunk(piece)
        await asyncio.sleep(0)
    await call.send(b"0\r\n\r\n")


CUTS: dict[str, Callable[[bytes], list[bytes]]] = {
    "one byte at a time": lambda body: [body[at : at + 1] for at in range(len(body))],
    "inside a character": lambda body: [body[: body.index(b"\xa9")], body[body.index(b"\xa9") :]],
    "all at once": lambda body: [body],
    "with carriage returns": lambda body: [body.replace(b"\n", b"\r\n")],
}


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS.keys())
async def test_bytes_may_be_cut_anywhere(cut: Callable[[bytes], list[bytes]]) -> None:
    async with faulty(lambda call: _in_pieces(call, cut)) as opened:
        response = await post(opened.port, BODY)
        assert response.complete
        assert response.texts == ["é", "你好", "😀"]


ENDS = {"stop": "eos_token", "length": "length", "abort": "stop_sequence", "spin": "invalid flag"}


@pytest.mark.parametrize(("word", "reason"), ENDS.items())
async def test_every_end_has_its_word(word: str, reason: str) -> None:
    async def answer(call: Call) -> None:
        await first_token(call)
        await call.event(call.tokens([301], " two", reason=word))
        await call.end()

    async with faulty(answer) as opened:
        response = await post(opened.port, BODY)
        assert response.complete
        assert response.frames[-1]["details"]["finish_reason"] == reason
        assert response.frames[-1]["details"]["generated_tokens"] == 2


async def test_an_abort_without_a_token_is_a_stop() -> None:
    async def answer(call: Call) -> None:
        await first_token(call)
        await call.event(call.tokens([], "", reason="abort"))
        await call.end()

    async with faulty(answer) as opened:
        response = await post(opened.port, BODY)
        assert response.complete
        assert response.frames[-1]["details"]["finish_reason"] == "stop_sequence"
        await opened.settled(succeeded=1)


@asynccontextmanager
async def _dawdling(rest: Callable[[Call], Awaitable[None]]) -> AsyncIterator[Sidecar]:
    async def answer(call: Call) -> None:
        await first_token(call)
        await call.event(call.tokens([301], " two", reason="length"))
        await rest(call)

    async with faulty(answer) as opened:
        yield opened


async def test_an_upstream_that_does_not_end_its_answer_holds_nobody_up() -> None:
    async with _dawdling(lambda call: call.gone.wait()) as opened:
        response = await post(opened.port, BODY)
        assert response.complete
        assert len(response.frames) == 2
        await opened.settled(succeeded=1)
        await asyncio.wait_for(opened.server.calls[0].gone.wait(), 3)


async def test_an_upstream_that_goes_on_and_on_is_cut_off() -> None:
    async def rest(call: Call) -> None:
        while True:
            await call.chunk(b"x" * 10_000)

    async with _dawdling(rest) as opened:
        assert (await post(opened.port, BODY)).complete
        await asyncio.wait_for(opened.server.calls[0].gone.wait(), 3)


async def test_a_finished_answer_gives_its_connection_back() -> None:
    async with sidecar(options={"check_period": 60.0}) as opened:
        for _ in range(10):
            assert (await ask(opened)).complete
        assert opened.server.connections <= 3


@pytest.mark.parametrize("tokens", [0, 1])
async def test_a_client_that_leaves_closes_the_upstreams_connection(tokens: int) -> None:
    async def answer(call: Call) -> None:
        await call.send(EVENT_STREAM)
        for _ in range(tokens):
            await call.event(call.tokens([300], "one", first=True))
        await call.gone.wait()

    async with faulty(answer) as opened, connection(opened.port) as client:
        client.send(request_bytes(BODY))
        await client.head()
        for _ in range(tokens):
            await client.chunk()
        await client.close()
        (call,) = opened.server.calls
        await asyncio.wait_for(call.gone.wait(), 1)
        await opened.settled(cancelled=1)


async def test_a_client_that_leaves_before_the_head_closes_it_too() -> None:
    async with faulty(silent_before_the_head) as opened, connection(opened.port) as client:
        client.send(request_bytes(BODY))
        while not opened.server.calls:
            await asyncio.sleep(0.002)
        await client.close()
        await asyncio.wait_for(opened.server.calls[0].gone.wait(), 1)
        await opened.settled(cancelled=1)


async def test_a_client_that_stops_reading_holds_the_upstream_back() -> None:
    """Bounded memory in between, and no token lost."""
    total, sent = 20_000, 0

    async def answer(call: Call) -> None:
        nonlocal sent
        await call.send(EVENT_STREAM)
        for number in range(1, total + 1):
            reason = "length" if number == total else None
            await call.event(call.tokens([300], "x" * 1000, reason=reason))
            sent = number
        await call.end()

    async with faulty(answer) as opened, connection(opened.port, receive_buffer=4096) as client:
        client.send(request_bytes(generate_body("one", 2000, details=True)))
        await client.head()
        before = -1
        while before != sent:
            before = sent
            await asyncio.sleep(0.3)
        assert sent < total / 2, "sockets' buffers, and not all of it"
        last: Any = None
        async with asyncio.timeout(30):
            while chunk := await client.chunk():
                last = frame_json(chunk)
        assert last["details"]["generated_tokens"] == total
        await opened.settled(succeeded=1)


async def test_no_clock_of_the_client_library_cuts_a_healthy_stream() -> None:
    async with sidecar() as opened:
        client = opened.engine._upstreams[0].client
        for session in (client._pooled, client._fresh):
            assert session.timeout.total is None
            assert session.timeout.sock_read is None


async def test_stop_infer_ends_the_stream_and_frees_the_upstream() -> None:
    async with fake_vllm(names=(MODEL,)) as server, sidecar(server) as opened:
        server.gate.clear()
        async with connection(opened.port) as client:
            client.send(request_bytes({"id": "mine", **generate_body("one two", 50, details=True)}))
            await client.head()
            await client.chunk()
            stopped = await post(opened.port, {"id": "mine"}, STOP_PATH)
            assert stopped.status == 200
            last = frame_json(await client.chunk())
            assert last["details"]["finish_reason"] == "stop_sequence"
            assert await client.chunk() == b""
        await asyncio.wait_for(server.calls[0].gone.wait(), 1)
        await opened.settled(succeeded=2)


async def never(call: Call) -> None:
    await call.gone.wait()


@pytest.mark.parametrize(
    ("settings", "parameters"),
    [
        ({}, {"timeout": 1}),
        ({"token_timeout": 0.3}, {}),
        ({"e2e_timeout": 0.3}, {}),
    ],
    ids=["the client's", "token", "e2e"],
)
async def test_the_clocks_run_while_the_upstream_tokenizes(
    settings: dict[str, Any], parameters: dict[str, Any]
) -> None:
    async with sidecar(**settings) as opened:
        opened.server.others["/tokenize"] = never
        async with asyncio.timeout(5):
            response = await post(opened.port, generate_body(**parameters))
        assert_error(response, 500, "Incomplete Generation")
        await opened.settled(failed=1)


async def test_the_clocks_run_while_the_upstream_spells_a_prompt() -> None:
    async with sidecar(e2e_timeout=0.3) as opened:
        opened.server.others["/detokenize"] = never
        body = {"inputs": "one two", "parameters": {"decoder_input_details": True}}
        response = await post(opened.port, body, "/generate")
        assert response.status == 500
        assert "server e2eTimeout" in response.json["error"]
        await opened.settled(failed=1)


async def test_a_refusal_whose_words_break_off_is_a_refusal() -> None:
    async with sidecar() as opened:
        opened.server.others["/tokenize"] = raw(
            b'HTTP/1.1 400 X\r\ncontent-length: 100\r\n\r\n{"error"'
        )
        assert_error(await post(opened.port, BODY), 424, "Generation Error")


async def test_what_is_being_tokenized_counts_as_admitted() -> None:
    async with sidecar(max_requests=1) as opened, connection(opened.port) as client:
        opened.server.others["/tokenize"] = never
        client.send(request_bytes(generate_body()))
        await eventually(lambda: opened.running.gateway.admission.preparing)
        response = await post(opened.port, generate_body())
        assert_error(response, 503, "Service Unavailable")
        assert response.headers["retry-after"] == "1"
        # A faulty one is told its fault.
        assert (await post(opened.port, generate_body(top_k=0))).status == 422
        await client.close()
        await eventually(lambda: not opened.running.gateway.admission.preparing)
        del opened.server.others["/tokenize"]
        assert (await post(opened.port, generate_body())).complete


async def test_a_drain_answers_what_is_being_tokenized() -> None:
    async with sidecar() as opened, connection(opened.port) as client:
        opened.server.others["/tokenize"] = never
        client.send(request_bytes(generate_body()))
        gateway = opened.running.gateway
        await eventually(lambda: gateway.under_way == 1)
        gateway.enter(State.DRAINING)
        gateway.admission.refuse_waiting(gateway.unavailable())
        assert_error(await client.response(), 503, "Service Unavailable")
        assert gateway.under_way == 0
