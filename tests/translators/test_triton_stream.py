"""generate_stream's frames: golden files byte by byte, and what must hold for any text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.translators.requests import BOTH
from translators.contract import DOCUMENTED, SERVER, Contract
from translators.errors import (
    GatewayError,
    GenerationTimeout,
    IncompleteGeneration,
    ServiceUnavailable,
)
from translators.tokens import Finish, FinishReason, Token
from translators.triton_stream import (
    BraceEscape,
    FrameStyle,
    TritonStream,
    finish_word,
    json_string,
)

GOLDEN = Path(__file__).resolve().parent.parent / "golden"
LENGTH = Finish(FinishReason.LENGTH)
END = Finish(FinishReason.END)
TIMEOUT = GenerationTimeout("client timeout", 10)


def golden(name: str) -> bytes:
    return (GOLDEN / f"{name}.sse").read_bytes()


def stream(
    contract: Contract = DOCUMENTED,
    *,
    request_id: str = "a123",
    details: bool = False,
    max_tokens: int = 100,
    style: FrameStyle = FrameStyle(),  # noqa: B008 - frozen
    stop_words: tuple[str, ...] = (),
) -> TritonStream:
    return TritonStream(
        request_id=request_id,
        model_name="llama3-70b",
        details=details,
        max_tokens=max_tokens,
        contract=contract,
        style=style,
        stop_words=stop_words,
    )


def tokens(texts: Sequence[str], finish: Finish | None = LENGTH) -> list[Token]:
    """Tokens with these texts, the last of which ends the sequence."""
    made = [Token(n, text, 0.001, 0.0, 1) for n, text in enumerate(texts)]
    made[-1] = made[-1]._replace(finish=finish)
    return made


def timed(*rows: tuple[str, float, int], batch_size: int = 1) -> list[Token]:
    """Tokens from text, milliseconds and microseconds in the queue."""
    made = [Token(0, text, ms / 1e3, us / 1e6, batch_size) for text, ms, us in rows]
    made[-1] = made[-1]._replace(finish=LENGTH)
    return made


def frames(translator: TritonStream, made: Sequence[Token]) -> bytes:
    return b"".join(translator.frame(token) for token in made)


def parsed(data: bytes) -> list[dict[str, Any]]:
    """The JSON of each frame, which must be `data:`, one line, and an empty line."""
    pieces = data.split(b"\n\n")
    assert pieces.pop() == b""
    assert all(piece.startswith(b"data:") and b"\n" not in piece for piece in pieces)
    return [orjson.loads(piece.removeprefix(b"data:")) for piece in pieces]


PARIS = ["live", " in", " Paris", ",", " France"]
EXAMPLE_1 = timed(
    ("live", 28, 5082), (" in", 9, 36), (" Paris", 8, 30), (",", 7, 23), (" France", 7, 24)
)
EXAMPLE_2 = timed(
    ("'m", 41.68, 5092),
    (" from", 20.44, 43),
    (" France", 12.176, 27),
    (".", 12.128, 26),
    (" I", 12.458, 26),
)
BRACES = ["\\frac{a}{b}", "{ alone", "} alone", "{}"]
ODD_TEXT = ["你好", "", "👩\u200d🚀é", '"\\/\n\t\x00\x1f', "\u2028<&>\x7f", ""]
FULL = FrameStyle(full_text=True)


@pytest.mark.parametrize("contract", BOTH, ids=lambda contract: contract.name)
def test_the_pages_first_example(contract: Contract) -> None:
    translator = stream(contract, details=True, max_tokens=5)
    assert frames(translator, EXAMPLE_1) == golden(f"page_example_1.{contract.name}")
    assert translator.ended


@pytest.mark.parametrize("contract", BOTH, ids=lambda contract: contract.name)
def test_the_pages_second_example(contract: Contract) -> None:
    translator = stream(
        contract, request_id="endpoint_common_20", details=True, max_tokens=5, style=FULL
    )
    assert frames(translator, EXAMPLE_2) == golden(f"page_example_2.{contract.name}")


@pytest.mark.parametrize("contract", BOTH, ids=lambda contract: contract.name)
@pytest.mark.parametrize(
    ("name", "texts", "style"),
    [
        ("plain", PARIS, FrameStyle()),
        ("data_space", PARIS, FrameStyle(data_space=True)),
        ("full_text", PARIS, FULL),
        ("text", ODD_TEXT, FrameStyle()),
        ("braces", BRACES, FrameStyle()),
        ("braces_full_text", BRACES, FULL),
        ("braces_as_they_are", BRACES, FrameStyle(brace_escape=False)),
    ],
)
def test_without_details(
    name: str, texts: list[str], style: FrameStyle, contract: Contract
) -> None:
    assert frames(stream(contract, style=style), tokens(texts)) == golden(name)


FIRST = Token(0, "live", 0.028, 0.005082, 3)


def failed(contract: Contract, error: GatewayError, *, first: bool = True, **options: Any) -> bytes:
    translator = stream(contract, **options)
    sent = translator.frame(FIRST) if first else b""
    sent += translator.failed(error)
    assert translator.ended
    return sent


def test_a_failure_is_a_last_frame() -> None:
    assert failed(DOCUMENTED, TIMEOUT, details=True) == golden("failed.details")
    assert failed(DOCUMENTED, TIMEOUT) == golden("failed.plain")
    assert failed(DOCUMENTED, TIMEOUT, style=FULL) == golden("failed.plain")
    assert not stream(DOCUMENTED).fails_with_normal_end


def test_a_failure_before_the_first_token() -> None:
    error = IncompleteGeneration("the engine died")
    assert failed(DOCUMENTED, error, first=False, details=True) == golden("failed.first")


def test_a_failure_in_the_servers_words() -> None:
    assert failed(SERVER, TIMEOUT, details=True) == golden("failed.server")
    assert stream(SERVER).fails_with_normal_end


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (TIMEOUT, "Engine callback timeout: client timeout"),
        (
            GenerationTimeout("server tokenTimeout", 1),
            "Engine callback timeout: server tokenTimeout",
        ),
        (GenerationTimeout("server e2eTimeout", 1), "Engine callback timeout: server e2eTimeout"),
        (IncompleteGeneration("the engine died"), "Failed to get engine response"),
        (ServiceUnavailable("shutting down"), "Failed to get engine response"),
    ],
)
@pytest.mark.parametrize("details", [True, False])
def test_raw_failure_texts(error: GatewayError, text: str, details: bool) -> None:
    assert failed(SERVER, error, first=False, details=details) == text.encode()


def test_a_failure_without_words_is_not_empty() -> None:
    (frame,) = parsed(failed(DOCUMENTED, IncompleteGeneration(""), first=False))
    assert frame["err_msg"] == frame["error_type"] == "Incomplete Generation"


def test_a_stopped_request_ends_with_a_normal_frame() -> None:
    translator = stream(details=True)
    sent = translator.frame(FIRST) + translator.stopped()
    assert translator.ended
    assert sent == golden("stopped.details")


def test_a_stopped_request_with_full_text_keeps_the_text() -> None:
    translator = stream(style=FULL)
    assert translator.frame(FIRST) + translator.stopped() == golden("stopped.full_text")


FOUR_KEYS = ["id", "model_name", "model_version", "text_output"]
DETAIL_KEYS = [
    "generated_tokens",
    "first_token_cost",
    "decode_cost",
    "batch_size",
    "queue_wait_time",
]


@pytest.mark.parametrize("contract", BOTH, ids=lambda contract: contract.name)
def test_keys_and_their_order(contract: Contract) -> None:
    for frame in parsed(frames(stream(contract), EXAMPLE_1)):
        assert list(frame) == FOUR_KEYS
    detailed = parsed(frames(stream(contract, details=True), EXAMPLE_1))
    for frame in detailed:
        assert list(frame) == [*FOUR_KEYS, "details", "prefill_time", "decode_time"]
    assert [list(frame["details"]) for frame in detailed] == [
        *[DETAIL_KEYS] * 4,
        ["finish_reason", *DETAIL_KEYS],
    ]


def test_the_first_frame_has_the_prefill_time_and_the_others_the_decode_time() -> None:
    seen = parsed(frames(stream(details=True), EXAMPLE_1))
    assert [frame["prefill_time"] for frame in seen] == [28.0, None, None, None, None]
    assert [frame["decode_time"] for frame in seen] == [None, 9.0, 8.0, 7.0, 7.0]
    assert [frame["details"]["generated_tokens"] for frame in seen] == [1, 2, 3, 4, 5]


def test_an_only_token_is_first_and_last() -> None:
    (frame,) = parsed(frames(stream(details=True), timed(("hi", 5.5, 7))))
    assert (frame["prefill_time"], frame["decode_time"]) == (5.5, None)
    assert frame["details"]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("seconds", "documented", "server"),
    [
        (0.0, b"0.0", b"0"),
        (0.0004, b"0.4", b"0"),
        (0.0009999, b"1.0", b"1"),
        (0.001999, b"1.999", b"1"),
        (0.009, b"9.0", b"9"),
        (1.001, b"1001.0", b"1001"),
        # Stamps of a clock that has run for months: their difference is not exact.
        (9_000_000.35 - 9_000_000.321, b"29.0", b"29"),
        (3600.0, b"3600000.0", b"3600000"),
    ],
)
def test_times_are_float_or_truncated(seconds: float, documented: bytes, server: bytes) -> None:
    for contract, shown in ((DOCUMENTED, documented), (SERVER, server)):
        frame = stream(contract, details=True).frame(Token(0, "x", seconds, 0.0, 1))
        assert frame.endswith(b'"prefill_time":' + shown + b',"decode_time":null}\n\n')


@pytest.mark.parametrize(
    ("seconds", "micros"),
    [(0.0, 0), (0.000036, 36), (0.000057, 57), (0.0000004, 0), (2.5, 2_500_000)],
)
def test_the_queue_time_is_in_whole_microseconds(seconds: float, micros: int) -> None:
    (frame,) = parsed(stream(details=True).frame(Token(0, "x", 0.0, seconds, 1)))
    assert frame["details"]["queue_wait_time"] == micros


@pytest.mark.parametrize(
    ("reason", "contract", "early", "on_last_token"),
    [
        (FinishReason.END, DOCUMENTED, "eos_token", "eos_token"),
        (FinishReason.END, SERVER, "eos_token", "length"),
        (FinishReason.LENGTH, DOCUMENTED, "length", "length"),
        (FinishReason.LENGTH, SERVER, "length", "length"),
        (FinishReason.STOPPED, DOCUMENTED, "stop_sequence", "stop_sequence"),
        (FinishReason.STOPPED, SERVER, "stop_sequence", "stop_sequence"),
        (FinishReason.UNKNOWN, DOCUMENTED, "invalid flag", "invalid flag"),
        (FinishReason.UNKNOWN, SERVER, "invalid finishReason", "invalid finishReason"),
    ],
)
def test_finish_reasons(
    reason: FinishReason, contract: Contract, early: str, on_last_token: str
) -> None:
    finish = Finish(reason)
    assert finish_word(contract, finish, on_last_token=False) == early
    assert finish_word(contract, finish, on_last_token=True) == on_last_token
    for limit, word in ((3, early), (2, on_last_token)):
        sent = frames(stream(contract, details=True, max_tokens=limit), tokens(["a", ""], finish))
        assert parsed(sent)[-1]["details"]["finish_reason"] == word


@pytest.mark.parametrize("style", [FrameStyle(), FULL])
def test_a_tail_inside_a_character_is_flushed_or_lost(style: FrameStyle) -> None:
    made = tokens(["a", ""], Finish(FinishReason.LENGTH, "\ufffd"))
    before = "a" if style.full_text else ""
    assert parsed(frames(stream(DOCUMENTED, style=style), made))[-1]["text_output"] == (
        before + "\ufffd"
    )
    assert parsed(frames(stream(SERVER, style=style), made))[-1]["text_output"] == before


def shown(translator: TritonStream, made: Sequence[Token]) -> list[str]:
    return [frame["text_output"] for frame in parsed(frames(translator, made))]


def test_a_stop_word_ends_the_stream_before_it() -> None:
    translator = stream(stop_words=("STOP",), details=True, max_tokens=9)
    made = tokens(["one S", "TO", "P two"], None)
    seen = parsed(frames(translator, made))
    assert [frame["text_output"] for frame in seen] == ["one ", "", ""]
    assert seen[-1]["details"]["finish_reason"] == "eos_token"
    assert translator.ended
    assert translator.generated == 3


def test_a_stop_word_on_the_last_allowed_token() -> None:
    for contract, word in ((DOCUMENTED, "eos_token"), (SERVER, "length")):
        translator = stream(contract, stop_words=("X",), details=True, max_tokens=2)
        seen = parsed(frames(translator, tokens(["a", "bX"])))
        assert seen[-1]["text_output"] == "b"
        assert seen[-1]["details"]["finish_reason"] == word


def test_what_was_held_back_for_a_stop_word_comes_with_the_end() -> None:
    assert shown(stream(stop_words=("STOP",)), tokens(["ST", "O"])) == ["", "STO"]
    assert shown(stream(stop_words=("STOP",)), tokens(["STO", ""], END)) == ["", "STO"]
    made = tokens(["STO", ""], Finish(FinishReason.LENGTH, "\ufffd"))
    assert shown(stream(stop_words=("STOP",)), made) == ["", "STO\ufffd"]


def test_what_was_held_back_comes_when_the_request_is_stopped() -> None:
    translator = stream(stop_words=("STOP",))
    assert shown(translator, tokens(["a ST"], None)) == ["a "]
    (frame,) = parsed(translator.stopped())
    assert frame["text_output"] == "ST"


def test_full_text_and_stop_words() -> None:
    made = tokens(["one S", "T", "ay S", "TOP"], None)
    assert shown(stream(stop_words=("STOP",), style=FULL), made) == [
        "one ",
        "one ",
        "one STay ",
        "one STay ",
    ]


def test_what_is_no_text_becomes_a_replacement_character() -> None:
    assert json_string("a\ud800b") == '"a\ufffdb"'.encode()
    assert json_string("\ud83d\ude00") == '"😀"'.encode()
    assert shown(stream(), tokens(["\udc80{}"])) == ["\ufffd{}"]


def test_every_letter_is_written_as_in_all_other_json_of_the_gateway() -> None:
    """That is written by orjson, texts by another encoder: raw UTF-8, the same escapes."""
    letters = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    assert [letter for letter in letters if json_string(letter) != orjson.dumps(letter)] == []


def test_names_with_letters_beyond_ascii() -> None:
    translator = TritonStream(
        request_id="a",
        model_name="模型-7b",
        details=False,
        max_tokens=1,
        contract=DOCUMENTED,
        style=FrameStyle(),
    )
    assert '"model_name":"模型-7b"'.encode() in translator.frame(Token(0, "x", 0.0, 0.0, 1, END))


# Braces, quotes, backslashes and the escape itself are likely; surrogates cannot be.
TEXT = st.text(st.sampled_from('{}"\\u07b \n你😀') | st.characters(codec="utf-8"), max_size=20)
TEXTS = st.lists(TEXT, min_size=1, max_size=10)
STYLES = st.builds(FrameStyle, full_text=st.booleans(), brace_escape=st.booleans())
CONTRACTS = st.sampled_from(BOTH)


@given(TEXTS, STYLES, CONTRACTS, st.booleans())
def test_the_frames_hold_the_text(
    texts: list[str], style: FrameStyle, contract: Contract, details: bool
) -> None:
    seen = shown(stream(contract, style=style, details=details), tokens(texts))
    if style.full_text:
        assert seen == ["".join(texts[: n + 1]) for n in range(len(texts))]
    else:
        assert seen == texts


@given(TEXTS, st.booleans())
def test_huaweis_sdk_finds_no_brace_to_split_at(texts: list[str], full_text: bool) -> None:
    style = FrameStyle(full_text=full_text)
    translator = stream(style=style)
    for token in tokens(texts):
        frame = translator.frame(token)
        assert not re.search(rb"\}[^}]*\{", frame)


@given(TEXTS)
@example(["{", "}", "{"])
@example(["}", "{"])
def test_full_text_is_escaped_as_the_whole_text_is(texts: list[str]) -> None:
    translator = stream(style=FULL)
    whole = ""
    for token in tokens(texts):
        whole += token.text
        head, _, text = translator.frame(token).partition(b'"text_output":')
        assert text == BraceEscape(enabled=True)(json_string(whole)) + b"}\n\n", head


@given(TEXTS)
def test_text_without_both_braces_is_not_escaped(texts: list[str]) -> None:
    for text in texts:
        frame = stream().frame(Token(0, text, 0.0, 0.0, 1))
        if not ("{" in text and "}" in text):
            assert orjson.dumps(text) in frame


WORDS = st.lists(st.text("ab{}", min_size=1, max_size=4), min_size=1, max_size=3).map(tuple)


@given(st.lists(st.text("ab{}x", max_size=6), min_size=1, max_size=8), WORDS, st.booleans())
def test_stop_words_never_show_in_frames(
    texts: list[str], words: tuple[str, ...], full_text: bool
) -> None:
    translator = stream(stop_words=words, style=FrameStyle(full_text=full_text))
    sent = b""
    for token in tokens(texts):
        sent += translator.frame(token)
        if translator.ended:
            break
    seen = [frame["text_output"] for frame in parsed(sent)]
    whole = seen[-1] if full_text else "".join(seen)
    assert translator.ended
    assert "".join(texts).startswith(whole)
    assert not any(word in whole for word in words)
    assert whole == "".join(texts) or any(word in "".join(texts) for word in words)
