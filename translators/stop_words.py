"""Stop words in streamed text: end before the first match, never leak a part of one.

The first match is the one that is complete first, because that is when a stream
has to stop; of those complete at once it is the longest. So the text does not
depend on how the tokens cut it.
"""

from __future__ import annotations

from typing import NamedTuple


class Matched(NamedTuple):
    """The text that may be shown now, and whether a stop word ended it."""

    text: str
    stopped: bool


class StopWords:
    """Holds back what could be the beginning of a stop word."""

    __slots__ = ("_held", "_words")

    def __init__(self, words: tuple[str, ...]) -> None:
        self._words = words
        self._held = ""

    def push(self, text: str) -> Matched:
        """Add new text. After `stopped` nothing more may be pushed."""
        window = self._held + text
        found = [(at + len(word), at) for word in self._words if (at := window.find(word)) >= 0]
        if found:
            self._held = ""
            _, at = min(found)
            return Matched(window[:at], True)
        keep = max((self._overlap(window, word) for word in self._words), default=0)
        cut = len(window) - keep
        self._held = window[cut:]
        return Matched(window[:cut], False)

    def flush(self) -> str:
        """What was held back, when the text ended by itself."""
        held, self._held = self._held, ""
        return held

    @staticmethod
    def _overlap(window: str, word: str) -> int:
        """Length of the longest end of `window` that begins `word`."""
        at = window.find(word[0], max(len(window) - len(word) + 1, 0))
        while at >= 0 and not word.startswith(window[at:]):
            at = window.find(word[0], at + 1)
        return len(window) - at if at >= 0 else 0
