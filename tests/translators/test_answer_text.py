"""The text of an answer: stop words, and what is left at its end."""

from __future__ import annotations

from translators.answer_text import AnswerText, Piece
from translators.tokens import Finish, FinishReason, Token

LENGTH = Finish(FinishReason.LENGTH)


def token(text: str, finish: Finish | None = None) -> Token:
    return Token(1, text, 0.0, 0.0, 1, finish)


def test_without_stop_words_a_text_goes_through() -> None:
    answer = AnswerText((), flush_tail=True)
    assert answer.push(token("a")) == Piece("a", None)
    assert answer.push(token("b", LENGTH)) == Piece("b", LENGTH)
    assert answer.stopped() == ""


def test_half_a_character_is_shown_or_lost_as_the_contract_says() -> None:
    finish = Finish(FinishReason.LENGTH, tail="\ufffd")
    assert AnswerText((), flush_tail=True).push(token("a", finish)).text == "a\ufffd"
    assert AnswerText((), flush_tail=False).push(token("a", finish)).text == "a"


def test_a_stop_word_is_an_end_of_its_own() -> None:
    answer = AnswerText(("stop",), flush_tail=True)
    assert answer.push(token("so st")) == Piece("so ", None)
    assert answer.push(token("op", LENGTH)) == Piece("", Finish(FinishReason.END))


def test_what_was_held_back_comes_before_the_half_character() -> None:
    answer = AnswerText(("stop",), flush_tail=True)
    finish = Finish(FinishReason.END, tail="\ufffd")
    assert answer.push(token("st")) == Piece("", None)
    assert answer.push(token("a", finish)) == Piece("sta\ufffd", finish)


def test_a_stopped_answer_shows_what_was_held_back_once() -> None:
    answer = AnswerText(("stop",), flush_tail=True)
    answer.push(token("a st"))
    assert answer.stopped() == "st"
    assert answer.stopped() == ""
