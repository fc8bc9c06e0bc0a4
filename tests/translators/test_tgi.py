"""The TGI shape: frames, whole answers and failures, byte by byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from translators import errors
from translators.errors import (
    BodyTooLarge,
    Forbidden,
    GatewayError,
    GenerationTimeout,
    IncompleteGeneration,
    InvalidInput,
    Overloaded,
    ServiceUnavailable,
)
from translators.tgi import Asked, TgiAnswer, TgiStream, as_tgi
from translators.tokens import Alternative, Finish, FinishReason, Token

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
TOP = (Alternative(3681, " Paris", -0.25), Alternative(2, "</s>", -2.5))
PARIS = Token(3681, " Paris", 0.1, 0.0, 1, logprob=-0.25)
POINT = Token(30, ".", 0.1, 0.0, 1, logprob=-1.5)
END = Token(2, "", 0.1, 0.0, 1, Finish(FinishReason.END))
PLAIN = Asked(special=frozenset({1, 2}), input_length=4)
FULL = Asked(details=True, special=frozenset({1, 2}), seed=42, input_length=4, opening="Where?")


def golden(name: str) -> bytes:
    return (GOLDEN / name).read_bytes()


def streamed(stream: TgiStream, *tokens: Token) -> bytes:
    frames = []
    for token in tokens:
        assert not stream.ended
        frames.append(stream.frame(token))
    return b"".join(frames)


def answered(answer: TgiAnswer, *tokens: Token) -> TgiAnswer:
    for token in tokens:
        assert not answer.ended
        answer.add(token)
    return answer


def test_frames() -> None:
    stream = TgiStream(PLAIN)
    assert streamed(stream, PARIS, POINT, END) == golden("tgi_stream.plain.sse")
    assert stream.ended
    assert stream.generated == 3


def test_frames_with_details_likely_tokens_and_the_prompt() -> None:
    stream = TgiStream(FULL)
    first = PARIS._replace(top=TOP)
    assert streamed(stream, first, POINT, END) == golden("tgi_stream.details.sse")


def test_a_stopped_stream_ends_with_what_there_is() -> None:
    stream = TgiStream(Asked(details=True, input_length=4))
    assert streamed(stream, PARIS) + stream.stopped() == golden("tgi_stream.stopped.sse")
    assert stream.ended


def test_a_broken_stream_ends_with_tgis_error() -> None:
    stream = TgiStream(PLAIN)
    error = IncompleteGeneration("the engine died")
    assert streamed(stream, PARIS) + stream.failed(error) == golden("tgi_stream.failed.sse")
    assert stream.ended
    assert not stream.fails_with_normal_end


def test_a_space_after_data_when_the_operator_wants_it() -> None:
    assert TgiStream(PLAIN, data_space=True).frame(PARIS).startswith(b'data: {"index":1,')


@pytest.mark.parametrize(("name", "in_a_list"), [("plain", False), ("list", True)])
def test_a_whole_answer(name: str, in_a_list: bool) -> None:
    answer = answered(TgiAnswer(PLAIN, in_a_list=in_a_list), PARIS, POINT, END)
    assert answer.ended
    assert answer.body() == golden(f"tgi_answer.{name}.json")


def test_a_whole_answer_with_everything() -> None:
    answer = TgiAnswer(FULL, prefill=[(5, "Where"), (6, "?")])
    answered(answer, PARIS._replace(top=TOP), POINT, END)
    assert answer.body() == golden("tgi_answer.details.json")


def test_a_stopped_whole_answer() -> None:
    answer = answered(TgiAnswer(Asked(details=True)), PARIS)
    answer.stopped()
    document = orjson.loads(answer.body())
    assert document["generated_text"] == " Paris"
    assert document["details"]["finish_reason"] == "stop_sequence"


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        (FinishReason.END, "eos_token"),
        (FinishReason.LENGTH, "length"),
        (FinishReason.STOPPED, "stop_sequence"),
        (FinishReason.UNKNOWN, "eos_token"),
    ],
)
def test_every_end_has_one_of_tgis_words(reason: FinishReason, word: str) -> None:
    stream = TgiStream(Asked(details=True))
    frame = stream.frame(POINT._replace(finish=Finish(reason)))
    assert orjson.loads(frame[5:])["details"]["finish_reason"] == word


def test_half_a_character_at_the_end_is_shown() -> None:
    last = Token(9, "", 0.0, 0.0, 1, Finish(FinishReason.LENGTH, tail="\ufffd"))
    frame = orjson.loads(TgiStream(PLAIN).frame(last)[5:])
    assert frame["token"]["text"] == frame["generated_text"] == "\ufffd"


def texts(*parts: str) -> list[Token]:
    return [Token(n, part, 0.0, 0.0, 1) for n, part in enumerate(parts)]


@pytest.mark.parametrize(
    ("parts", "stop", "count"),
    [
        (["a", "b", "c"], ["b"], 2),
        (["ab", "cd", "ef"], ["bc"], 2),
        (["a", "b", "c", "d"], ["abcd"], 4),
        (["a", "b", "c"], ["x", "c"], 3),
        (["one stop more", "x"], ["stop"], 1),
        (["a", "", "b"], ["ab"], 3),
    ],
)
def test_a_stop_sequence_ends_the_stream_with_its_own_text(
    parts: list[str], stop: list[str], count: int
) -> None:
    stream = TgiStream(Asked(details=True, stop=tuple(stop)))
    frames = []
    for token in texts(*parts):
        frames.append(orjson.loads(stream.frame(token)[5:]))
        if stream.ended:
            break
    assert len(frames) == count
    assert frames[-1]["details"]["finish_reason"] == "stop_sequence"
    assert frames[-1]["generated_text"] == "".join(parts[:count])


@given(
    st.lists(st.text("ab", max_size=3), max_size=8),
    st.lists(st.text("ab", min_size=1, max_size=4), max_size=2),
)
def test_a_stream_goes_on_exactly_while_no_stop_sequence_is_complete(
    parts: list[str], stop: list[str]
) -> None:
    stream = TgiStream(Asked(stop=tuple(stop)))
    so_far = ""
    for token in texts(*parts):
        stream.frame(token)
        so_far += token.text
        assert stream.ended == any(word in so_far for word in stop)
        if stream.ended:
            return


@given(st.lists(st.text(max_size=3), min_size=1, max_size=5))
def test_every_frame_is_one_line_of_json_whatever_the_text(parts: list[str]) -> None:
    stream = TgiStream(PLAIN)
    *inner, last = texts(*parts)
    frames = [
        *map(stream.frame, inner),
        stream.frame(last._replace(finish=Finish(FinishReason.END))),
    ]
    for frame in frames:
        assert frame.count(b"\n") == 2
        orjson.loads(frame[5:])
    assert orjson.loads(frames[-1][5:])["generated_text"] == "".join(parts)


@pytest.mark.parametrize(
    ("error", "status", "word"),
    [
        (InvalidInput("x"), 422, "validation"),
        (BodyTooLarge("x"), 413, "validation"),
        (GenerationTimeout("client timeout", 5), 500, "incomplete_generation"),
        (Overloaded("x", retry_after=3), 429, "overloaded"),
        (ServiceUnavailable("x", retry_after=3), 503, "overloaded"),
        (errors.GenerationError("x"), 424, "generation"),
        (errors.BadRequest("x"), 400, "validation"),
        (errors.UnsupportedEncoding("x"), 415, "validation"),
    ],
)
def test_failures_in_tgis_words(error: GatewayError, status: int, word: str) -> None:
    theirs = as_tgi(error)
    assert theirs.status == status
    assert theirs.retry_after == error.retry_after
    assert orjson.loads(theirs.body()) == {"error": error.message, "error_type": word}


def test_what_is_no_matter_of_the_request_stays_as_it_is() -> None:
    error = Forbidden("x")
    assert as_tgi(error) is error


def test_no_failure_of_a_generation_is_forgotten() -> None:
    def leaves(kind: type[GatewayError]) -> list[type[GatewayError]]:
        return [kind, *(leaf for child in kind.__subclasses__() for leaf in leaves(child))]

    ours: list[Any] = [k for k in leaves(GatewayError) if k.__module__ == errors.__name__]
    apart = {
        GatewayError,
        errors.AccessRefused,
        errors.Unauthorized,
        errors.Forbidden,
        errors.TooManyRequests,
        errors.NotFound,
    }
    words = {"validation", "generation", "incomplete_generation", "overloaded"}
    for kind in {*ours} - apart:
        error = kind("x", 1.0) if kind is GenerationTimeout else kind("x")
        assert as_tgi(error).error_type in words, kind
