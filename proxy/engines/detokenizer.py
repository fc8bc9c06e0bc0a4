"""Token ids to text, one token at a time, never half a character.

`tokenizers.DecodeStream` does the work for the usual tokenizers, as in vLLM
itself; any other tokenizer is decoded over a sliding window.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

log = logging.getLogger(__name__)

REPLACEMENT: Final = "\ufffd"
_WINDOW: Final = 6
"""Prompt tokens that give a sliding window its left context."""

Decode = Callable[[Sequence[int]], str]


class Detokenizer(Protocol):
    """The text of one sequence as it grows."""

    def push(self, token_id: int) -> str:
        """The new whole characters, or nothing while a character is incomplete."""

    def flush(self) -> str:
        """What is left of an incomplete character at the end, as U+FFFD, else nothing."""


def make_detokenizer(tokenizer: Any, prompt: Sequence[int]) -> Detokenizer:
    """The right detokenizer for a Hugging Face tokenizer, primed with the prompt."""
    backend = getattr(tokenizer, "_tokenizer", None)
    if type(backend).__module__.startswith("tokenizers"):
        return StreamDetokenizer(backend, prompt)

    def decode(ids: Sequence[int]) -> str:
        return str(tokenizer.decode(list(ids), skip_special_tokens=True))

    return WindowDetokenizer(decode, prompt)


class StreamDetokenizer:
    """Over `tokenizers.DecodeStream`."""

    def __init__(self, backend: Any, prompt: Sequence[int]) -> None:
        from tokenizers.decoders import DecodeStream

        self._make = DecodeStream
        self._backend = backend
        self._stream = DecodeStream(ids=list(prompt), skip_special_tokens=True)
        self._held: list[int] = []

    def push(self, token_id: int) -> str:
        try:
            text = self._stream.step(self._backend, token_id)
        except Exception as error:
            text = self._recover(token_id, error)
        if text:
            self._held.clear()
            return str(text)
        self._held.append(token_id)
        return ""

    def flush(self) -> str:
        if not self._held:
            return ""
        tail = str(self._backend.decode(self._held, skip_special_tokens=True))
        return tail if REPLACEMENT in tail else ""

    def _recover(self, token_id: int, error: Exception) -> str | None:
        # Bytes that are no text can put DecodeStream in a state from which every
        # further step fails; a fresh one goes on from here.
        log.debug("detokenizer starts afresh: %s", error)
        self._stream = self._make(skip_special_tokens=True)
        try:
            step: str | None = self._stream.step(self._backend, token_id)
        except Exception:
            log.warning("the tokenizer cannot decode token %d", token_id)
            return None
        return step


class WindowDetokenizer:
    """Over any `decode`: text is new when a longer window shows more of it.

    The window begins a few tokens back, because some tokenizers decode a token
    differently at the beginning of a text.
    """

    def __init__(self, decode: Decode, prompt: Sequence[int]) -> None:
        self._decode = decode
        self._ids = list(prompt[-_WINDOW:])
        self._begin = 0
        self._read = len(self._ids)

    def push(self, token_id: int) -> str:
        self._ids.append(token_id)
        before, after = self._texts()
        if len(after) <= len(before) or after.endswith(REPLACEMENT):
            return ""
        self._begin, self._read = self._read, len(self._ids)
        return after[len(before) :]

    def flush(self) -> str:
        before, after = self._texts()
        tail = after[len(before) :]
        return tail if REPLACEMENT in tail else ""

    def _texts(self) -> tuple[str, str]:
        return (
            self._decode(self._ids[self._begin : self._read]),
            self._decode(self._ids[self._begin :]),
        )
