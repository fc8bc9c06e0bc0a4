"""Base64 in the request itself, decoded piece by piece."""

from __future__ import annotations

import asyncio
import binascii
from typing import Final, Protocol

from translators.media import InlineSource
from translators.media_urls import MediaRefused

_STEP: Final = 256 * 1024
"""Characters at a time, a multiple of four: well under a millisecond of the event loop."""


class Sink(Protocol):
    """Takes the decoded bytes."""

    @property
    def size(self) -> int: ...

    async def write(self, data: bytes) -> None: ...


async def decode(source: InlineSource, sink: Sink) -> None:
    """Decode everything into `sink`. MediaRefused for what is not base64.

    The size was checked before.
    """
    for offset in range(source.start, len(source.value), _STEP):
        await sink.write(_bytes(source.value[offset : offset + _STEP]))
        await asyncio.sleep(0)
    if sink.size != source.size:
        # Padding in the middle: several texts one after the other.
        raise MediaRefused("is not valid base64")


def _bytes(text: str) -> bytes:
    try:
        return binascii.a2b_base64(text.encode("ascii"), strict_mode=True)
    except (binascii.Error, UnicodeEncodeError):
        raise MediaRefused("is not valid base64") from None
