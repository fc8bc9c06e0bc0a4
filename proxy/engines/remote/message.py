"""Text and media as one chat message to a vLLM server.

Media travel as data URLs: the server fetches nothing, and no URL of a client
reaches it. They are read and encoded piece by piece while they are sent, so that
a large medium is never in memory as a whole.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import orjson

from proxy.media.content import Content, PromptPart
from proxy.threads import joined
from translators.media import TextPart
from translators.media_formats import rule_of

_BLOCK: Final = 3 * 256 * 1024
"""Bytes that are read and encoded at a time: whole groups of three."""


@dataclass(frozen=True, slots=True)
class LargeBody:
    """A JSON body that is made while it is sent."""

    pieces: tuple[bytes | Content, ...]
    """JSON as it is, and media to be put in as base64."""

    @property
    def length(self) -> int:
        """Bytes in all."""
        return sum(
            len(piece) if isinstance(piece, bytes) else -(-piece.size // 3) * 4
            for piece in self.pieces
        )

    async def blocks(self) -> AsyncIterator[bytes]:
        """The body, piece by piece; media are read in a thread."""
        for piece in self.pieces:
            if isinstance(piece, bytes):
                yield piece
                continue
            for offset in range(0, piece.size, _BLOCK):
                block = await joined(partial(piece.read_at, offset, _BLOCK))
                yield base64.b64encode(block)


class ChatMessage:
    """One user message. It holds its own copies of the media until `close`."""

    def __init__(self, parts: Sequence[PromptPart]) -> None:
        self._media: list[tuple[bytes, Content]] = []
        self._content = [self._part(part) for part in parts]

    def _part(self, part: PromptPart) -> dict[str, Any]:
        if isinstance(part, TextPart):
            return {"type": "text", "text": part.text}
        # Stands in the JSON where the base64 will be; no text can hold it by chance.
        mark = f"@{uuid.uuid4().hex}@"
        self._media.append((mark.encode(), part.content.duplicate()))
        field = rule_of(part.kind).field
        return {"type": field, field: {"url": f"data:{part.format.types[0]};base64,{mark}"}}

    def body(self, document: dict[str, Any]) -> LargeBody:
        """`document` with this message as its `messages`."""
        messages = [{"role": "user", "content": self._content}]
        rest = orjson.dumps({**document, "messages": messages})
        pieces: list[bytes | Content] = []
        for mark, content in self._media:
            before, _, rest = rest.partition(mark)
            pieces += [before, content]
        return LargeBody((*pieces, rest))

    def close(self) -> None:
        """Free the media. Safe to call twice."""
        for _, content in self._media:
            content.close()
