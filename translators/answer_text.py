"""The text of one answer as it grows: cut at stop words, whole at its end."""

from __future__ import annotations

from typing import NamedTuple

from translators.stop_words import StopWords
from translators.tokens import Finish, FinishReason, Token


class Piece(NamedTuple):
    """What one token adds to the answer, and the end if the answer ends with it."""

    text: str
    finish: Finish | None


class AnswerText:
    """`flush_tail` shows what is left of half a character at the end as U+FFFD."""

    def __init__(self, stop_words: tuple[str, ...], *, flush_tail: bool) -> None:
        self._stop_words = StopWords(stop_words) if stop_words else None
        self._flush_tail = flush_tail

    def push(self, token: Token) -> Piece:
        """One token. After a piece with a finish nothing more may be pushed."""
        text, finish = token.text, token.finish
        if self._stop_words is not None:
            text, stopped = self._stop_words.push(text)
            if stopped:
                return Piece(text, Finish(FinishReason.END))
        if finish is not None:
            text += self.stopped()
            if self._flush_tail:
                text += finish.tail
        return Piece(text, finish)

    def stopped(self) -> str:
        """What was held back, when the answer ends here without a further token."""
        return self._stop_words.flush() if self._stop_words is not None else ""
