"""How the chunks of one answer look, learned from those before: they differ in text and id only.

Reading JSON as a whole takes most of the time that a token costs here. A chunk
that is byte for byte like the ones before it, but for its text and its one token
id, is read without; every other chunk is read as JSON.
"""

from __future__ import annotations

from typing import Final

import orjson

from proxy.engines.remote.chunks import Chunk

_TEXT: Final = b'"text":'
_IDS: Final = b'"token_ids":['
_GOES_ON: Final = b'"finish_reason":null'
_USAGE: Final = b'"usage":'
_OPENING: Final = b"data: "
_EVENT_END: Final = b"\n\n"
_DIGITS: Final = 10
"""Of a token id, at most."""
_LESSONS: Final = 8
"""Chunks from which to learn, at most: a server whose chunks are all different is read as JSON."""
_LONGEST: Final = 1000
"""Bytes between text and ids; the first chunk has the whole prompt there."""


class Layout:
    """What stands before, between and after the text and the token id of a plain chunk."""

    __slots__ = ("_between", "_head", "_lessons", "_middle", "_opening", "_tail", "_to_the_end")

    def __init__(self) -> None:
        self._head: bytes | None = None
        self._middle = b""
        self._tail = b""
        self._to_the_end = False
        self._opening = self._between = b""
        self._lessons = _LESSONS

    def read(self, payload: bytes) -> tuple[int, str] | None:
        """Token id and text of a chunk that looks as learned; None for any other."""
        head = self._head
        if head is None or not payload.startswith(head):
            return None
        return self._token(payload[len(head) :])

    def leading(self, block: bytes) -> tuple[list[tuple[int, str]], bytes]:
        """What `read` says of the events that `block` begins with, and the block after them.

        A busy server has many tokens ready at once: they are told apart in one go.
        """
        opening = self._opening
        if not opening or not block.startswith(opening):
            return [], block
        found: list[tuple[int, str]] = []
        parts = block[len(opening) :].split(self._between)
        for part in parts[:-1]:
            token = self._token(part)
            if token is None:
                break
            found.append(token)
        # The last of the block has its end with it, and so has one before another kind of event.
        parts = parts[len(found) :]
        event, end, others = parts[0].partition(_EVENT_END)
        token = self._token(event) if end else None
        if token is None:
            return found, opening + self._between.join(parts)
        found.append(token)
        return found, self._between.join([others, *parts[1:]])

    def _token(self, rest: bytes) -> tuple[int, str] | None:
        """Of a chunk without its head."""
        # A string of JSON holds no bare quote, so this is not found within the text.
        literal, _, rest = rest.partition(self._middle)
        digits, tail, more = rest.partition(self._tail)
        if not tail or not digits.isdigit() or len(digits) > _DIGITS:
            return None
        if more and (self._to_the_end or b"\n" in more):
            return None
        try:
            text = orjson.loads(literal)
        except orjson.JSONDecodeError:
            return None
        return (int(digits), text) if type(text) is str else None

    def learn(self, payload: bytes, chunk: Chunk) -> None:
        """Look at a chunk of one token that was read as JSON."""
        if self._lessons <= 0 or chunk.reason is not None or chunk.logprobs is not None:
            return
        self._lessons -= 1
        begin = payload.find(_TEXT) + len(_TEXT)
        literal = orjson.dumps(chunk.text)
        end = begin + len(literal)
        ids = payload.find(_IDS, end) + len(_IDS)
        middle, rest = payload[end:ids], payload[payload.find(b"]", ids) :]
        # The figures of usage change; they stand last and are not needed.
        tail, usage, _ = rest.partition(_USAGE)
        known = payload.startswith(literal, begin) and middle.endswith(_IDS)
        if known and _GOES_ON in middle + tail and len(middle) < _LONGEST:
            self._head, self._middle, self._tail = payload[:begin], middle, tail + usage
            self._to_the_end = not usage
            self._opening = _OPENING + self._head
            self._between = _EVENT_END + self._opening
