"""Token ids to text, one token at a time, never half a character.

A byte-level tokenizer (GPT-2, Llama 3, Qwen, DeepSeek...) has a text for nearly
every token that stands by itself: it is looked up. For the other tokenizers of
`tokenizers` its `DecodeStream` does the work, as in vLLM itself; any tokenizer
else is decoded over a sliding window.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Protocol

log = logging.getLogger(__name__)

REPLACEMENT: Final = "\ufffd"
_CONTEXT_SIZES: Final = range(6, 10)
"""Prompt tokens that show how the answer's first token follows on. Four sizes,
because a character has up to four bytes: one of them begins between characters."""

Decode = Callable[[list[int]], str]


class Detokenizer(Protocol):
    """The text of one sequence as it grows."""

    def push(self, token_id: int) -> str:
        """The new whole characters, or nothing while a character is incomplete."""

    def flush(self) -> str:
        """What was held back of an incomplete character, with U+FFFD, else nothing."""


class Detokenizers:
    """The detokenizers of one Hugging Face tokenizer, for all sequences."""

    def __init__(self, tokenizer: Any) -> None:
        backend: Any = getattr(tokenizer, "_tokenizer", None)
        self._fast = type(backend).__module__.startswith("tokenizers")
        self._backend = backend if self._fast else tokenizer
        self._decode: Decode = partial(self._backend.decode, skip_special_tokens=True)
        self._pieces = Pieces(self._decode) if self._fast and _is_byte_level(backend) else None

    def after(self, prompt: Sequence[int]) -> Detokenizer:
        """The right one for a sequence that begins with this prompt."""
        if self._pieces is not None:
            return PieceDetokenizer(self._pieces)
        if not self._fast:
            return WindowDetokenizer(self._decode, prompt)
        context = _context(self._decode, prompt)
        # DecodeStream takes a prompt that ends with U+FFFD for half a character, and
        # would hand the prompt out together with the first token.
        if self._decode(context).endswith(REPLACEMENT):
            return WindowDetokenizer(self._decode, prompt)
        return StreamDetokenizer(self._backend, context)


def _is_byte_level(backend: Any) -> bool:
    """Whether a text is the bytes of its tokens, one after the other, and nothing else."""
    from tokenizers.decoders import ByteLevel

    return type(backend.decoder) is ByteLevel


def _context(decode: Decode, prompt: Sequence[int]) -> list[int]:
    """The end of a prompt, as short as it may be: whole text, or all there is."""
    ids: list[int] = []
    text = ""
    for size in _CONTEXT_SIZES:
        ids = list(prompt[-size:])
        text = decode(ids)
        if text and not text.endswith(REPLACEMENT):
            return ids
    return ids if text else list(prompt)


def _new_text(decode: Decode, context: list[int], fresh: list[int]) -> str:
    """The text of `fresh` after `context`."""
    before, after = decode(context), decode(context + fresh)
    # Byte tokens that turn out to be no text spoil the ones before them, too.
    return after[len(before) :] if after.startswith(before) else decode(fresh)


class Pieces(dict[int, str | None]):
    """The texts of tokens by themselves, each decoded once; None for a part of a character."""

    def __init__(self, decode: Decode) -> None:
        super().__init__()
        self.decode = decode

    def __missing__(self, token_id: int) -> str | None:
        text = self.decode([token_id])
        piece = self[token_id] = None if REPLACEMENT in text else text
        return piece


class PieceDetokenizer:
    """For byte-level tokenizers: what came before does not change the text of a token.

    Only the tokens of a character that is spread over several are decoded together.
    """

    __slots__ = ("_held", "_pieces")

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self._held: list[int] = []

    def push(self, token_id: int) -> str:
        if not self._held:
            piece = self._pieces[token_id]
            if piece is not None:
                return piece
        self._held.append(token_id)
        text = self._pieces.decode(self._held)
        if text.endswith(REPLACEMENT):
            return ""
        self._held = []
        return text

    def flush(self) -> str:
        return self._pieces.decode(self._held) if self._held else ""


class StreamDetokenizer:
    """Over `tokenizers.DecodeStream`. `context` is the prompt, or an end of it."""

    def __init__(self, backend: Any, context: Sequence[int]) -> None:
        from tokenizers.decoders import DecodeStream

        self._make = partial(DecodeStream, skip_special_tokens=True)
        self._backend = backend
        self._decode: Decode = partial(backend.decode, skip_special_tokens=True)
        self._context = list(context)
        self._held: list[int] = []
        self._stream = self._make(ids=self._context)

    def push(self, token_id: int) -> str:
        self._held.append(token_id)
        try:
            text: str | None = self._stream.step(self._backend, token_id)
        except Exception as error:
            log.debug("the token stream is decoded afresh: %s", type(error).__name__)
            text = self._restart()
        if not text:
            return ""
        self._context, self._held = self._held, []
        return text

    def flush(self) -> str:
        return _new_text(self._decode, self._context, self._held) if self._held else ""

    def _restart(self) -> str:
        # Byte tokens that are no text put DecodeStream in a state from which
        # every further step fails.
        self._stream = self._make(ids=self._held)
        return _new_text(self._decode, self._context, self._held)


class WindowDetokenizer:
    """Over any `decode`: text is new when a longer window shows more of it.

    The window begins some tokens back, because some tokenizers decode a token
    differently at the beginning of a text.
    """

    def __init__(self, decode: Decode, prompt: Sequence[int]) -> None:
        self._decode = decode
        self._context = _context(decode, prompt)
        self._held: list[int] = []

    def push(self, token_id: int) -> str:
        self._held.append(token_id)
        text = _new_text(self._decode, self._context, self._held)
        if not text or text.endswith(REPLACEMENT):
            return ""
        self._context, self._held = self._held, []
        return text

    def flush(self) -> str:
        return _new_text(self._decode, self._context, self._held) if self._held else ""
