"""Frames to the socket: each one HTTP chunk, without a task switch for each.

aiohttp prepares and ends the response. In between the frames go straight to the
transport, several of one wake-up in one `write` (each still its own chunk), and
the reader of tokens waits only while the client's socket is full. Those that the
engine's task makes go by way of the `Outbox`, with the other streams' of the step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Final, Protocol, cast

from aiohttp import HttpVersion11, hdrs, web
from multidict import istr

from proxy.departure import ClientGone
from proxy.outbox import Outbox

HIGH_WATER: Final = 64 * 1024
"""Bytes in the transport's buffer above which the tokens wait (asyncio's own default)."""

STREAM_HEADERS: Final = {
    hdrs.CONTENT_TYPE: "text/event-stream",
    hdrs.CACHE_CONTROL: "no-cache",
    istr("X-Accel-Buffering"): "no",
}
"""By names that are `istr`, here and for all headers of a stream: of any other name every open
stream keeps a copy of 200 bytes."""


class Connection(Protocol):
    """What a writer asks of the connection beside aiohttp's own (see `http_protocol`)."""

    def close_within(self, seconds: float) -> None:
        """Send what is buffered, then close; abort when the client does not take it in time."""


class FrameWriter:
    """The body of one streamed response."""

    __slots__ = (
        "_chunked",
        "_outbox",
        "_request",
        "_response",
        "_transport",
        "_write_timeout",
        "_writer",
    )

    def __init__(self, request: web.Request, outbox: Outbox, *, write_timeout: float) -> None:
        self._request = request
        self._outbox = outbox
        self._response = web.StreamResponse(headers=STREAM_HEADERS)
        self._chunked = request.version >= HttpVersion11
        self._write_timeout = write_timeout
        if not self._chunked:
            # The end of the connection is the end of the body, whatever the client asked.
            self._response.force_close()

    async def start(self) -> None:
        """Send status and headers now; the first token may take its time."""
        try:
            writer = await self._response.prepare(self._request)
            assert writer is not None
            writer.send_headers()
        except ConnectionError:
            raise ClientGone from None
        self._writer = writer
        transport = self._request.transport
        if transport is None:
            raise ClientGone
        # Kept, because aiohttp's way to it costs more than a frame's own; it knows when it is lost.
        self._transport = transport

    async def send(self, frames: Sequence[bytes]) -> None:
        """Write frames; wait while the client's socket is full.

        Raises ClientGone when the client has left or exceeds the write timeout.
        """
        transport = self._open_transport()
        if self._chunked:
            transport.write(b"".join([b"%x\r\n%b\r\n" % (len(f), f) for f in frames]))
        else:
            transport.write(b"".join(frames))
        if transport.get_write_buffer_size() > HIGH_WATER:
            await self._in_time(transport, self._writer.drain())

    @property
    def clear(self) -> bool:
        """Whether `put` may be called: the client is there and takes what it gets."""
        transport = self._transport
        return not transport.is_closing() and transport.get_write_buffer_size() <= HIGH_WATER

    def put(self, frame: bytes) -> None:
        """Write one frame with others of its step. Only while `clear`; does not wait."""
        data = b"%x\r\n%b\r\n" % (len(frame), frame) if self._chunked else frame
        self._outbox.put(self._transport, data)

    async def finish(self) -> web.StreamResponse:
        """End the response as a success. Raises ClientGone as `send` does."""
        await self._in_time(self._open_transport(), self._response.write_eof())
        return self._response

    def drop(self) -> web.StreamResponse:
        """Let the client have what was written, then close without the final chunk."""
        self._outbox.send()
        cast(Connection, self._request.protocol).close_within(self._write_timeout)
        return self._response

    async def _in_time(self, transport: asyncio.Transport, writing: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout(self._write_timeout):
                await writing
        except TimeoutError:
            transport.abort()
            raise ClientGone from None
        except ConnectionError:
            raise ClientGone from None

    def _open_transport(self) -> asyncio.Transport:
        # What was put comes before what is written now.
        self._outbox.send()
        if self._transport.is_closing():
            raise ClientGone
        return self._transport
