"""generate: one JSON object with the words of the stream's frames (contract §7)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from translators.contract import CONTRACTS, DOCUMENTED, SERVER, Contract
from translators.tokens import Finish, FinishReason, Token
from translators.triton_generate import TritonGenerate
from translators.triton_stream import FrameStyle, TritonStream

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
LENGTH = Finish(FinishReason.LENGTH)
PARIS = (
    Token(3681, "live", 0.028, 0.005082, 1),
    Token(297, " in", 0.009, 0.0, 2),
    Token(3681, " Paris", 0.008, 0.0, 2),
    Token(29892, ",", 0.007, 0.0, 1),
    Token(3444, " France", 0.007, 0.00003, 1, LENGTH),
)


def answer(
    *,
    details: bool = False,
    contract: Contract = DOCUMENTED,
    max_tokens: int = 5,
    brace_escape: bool = True,
    stop_words: tuple[str, ...] = (),
) -> TritonGenerate:
    return TritonGenerate(
        request_id="a123",
        model_name="llama3-70b",
        details=details,
        max_tokens=max_tokens,
        contract=contract,
        brace_escape=brace_escape,
        stop_words=stop_words,
    )


def filled(translator: TritonGenerate, tokens: tuple[Token, ...]) -> TritonGenerate:
    for token in tokens:
        assert not translator.ended
        translator.add(token)
    return translator


def text_of(translator: TritonGenerate) -> Any:
    return orjson.loads(translator.body())["text_output"]


@pytest.mark.parametrize(("name", "details"), [("plain", False), ("details", True)])
def test_the_answer_byte_by_byte(name: str, details: bool) -> None:
    translator = filled(answer(details=details), PARIS)
    assert translator.ended
    assert translator.body() == (GOLDEN / f"generate.{name}.json").read_bytes()


def test_a_stopped_answer_holds_what_there_is() -> None:
    translator = filled(answer(details=True), PARIS[:2])
    translator.stopped()
    assert translator.ended
    assert translator.body() == (GOLDEN / "generate.stopped.json").read_bytes()


def test_an_answer_that_is_stopped_before_its_first_token_is_empty() -> None:
    translator = answer(details=True)
    translator.stopped()
    details = orjson.loads(translator.body())["details"]
    assert text_of(translator) == ""
    assert (details["generated_tokens"], details["batch_size"], details["queue_wait_time"]) == (
        0,
        [],
        [],
    )


def test_a_stop_word_ends_the_answer_before_it() -> None:
    translator = filled(answer(details=True, stop_words=("Paris",)), PARIS[:3])
    assert translator.ended
    assert text_of(translator) == "live in "
    assert orjson.loads(translator.body())["details"]["finish_reason"] == "eos_token"


def test_what_could_have_become_a_stop_word_is_shown_at_the_end() -> None:
    finished = filled(answer(stop_words=("Francesca",)), PARIS)
    assert text_of(finished) == "live in Paris, France"
    stopped = filled(answer(stop_words=(" island",)), PARIS[:2])
    stopped.stopped()
    assert text_of(stopped) == "live in"


@pytest.mark.parametrize(
    ("contract", "word", "text"), [(DOCUMENTED, "eos_token", "ab\ufffd"), (SERVER, "length", "ab")]
)
def test_the_contracts_differ_at_the_end_as_in_a_stream(
    contract: Contract, word: str, text: str
) -> None:
    tokens = (
        Token(1, "ab", 0.0, 0.0, 1),
        Token(2, "", 0.0, 0.0, 1, Finish(FinishReason.END, tail="\ufffd")),
    )
    translator = filled(answer(details=True, contract=contract, max_tokens=2), tokens)
    assert orjson.loads(translator.body())["details"]["finish_reason"] == word
    assert text_of(translator) == text


def test_braces_are_escaped_over_the_whole_text() -> None:
    tokens = (Token(1, "{a", 0.0, 0.0, 1), Token(2, "}", 0.0, 0.0, 1, LENGTH))
    escaped, plain = filled(answer(), tokens), filled(answer(brace_escape=False), tokens)
    assert b'"text_output":"\\u007ba}"' in escaped.body()
    assert b'"text_output":"{a}"' in plain.body()
    assert text_of(escaped) == text_of(plain) == "{a}"


@given(
    st.lists(st.text(max_size=4), min_size=1, max_size=8),
    st.lists(st.text("ab ", min_size=1, max_size=3), max_size=2),
    st.sampled_from(sorted(CONTRACTS)),
    st.sampled_from(FinishReason),
)
def test_the_text_is_that_of_the_stream(
    texts: list[str], words: list[str], name: Any, reason: FinishReason
) -> None:
    last = len(texts) - 1
    tokens = [
        Token(i, text, 0.0, 0.0, 1, Finish(reason, "\ufffd") if i == last else None)
        for i, text in enumerate(texts)
    ]
    whole = answer(details=True, contract=CONTRACTS[name], stop_words=tuple(words), max_tokens=99)
    stream = TritonStream(
        request_id="a",
        model_name="m",
        details=True,
        max_tokens=99,
        contract=CONTRACTS[name],
        style=FrameStyle(),
        stop_words=tuple(words),
    )
    frames = []
    for token in tokens:
        whole.add(token)
        frames.append(orjson.loads(stream.frame(token)[5:]))
        if whole.ended:
            break
    assert stream.ended
    body = orjson.loads(whole.body())
    assert body["text_output"] == "".join(frame["text_output"] for frame in frames)
    assert body["details"]["finish_reason"] == frames[-1]["details"]["finish_reason"]
    assert body["details"]["generated_tokens"] == len(frames) == len(body["details"]["batch_size"])
