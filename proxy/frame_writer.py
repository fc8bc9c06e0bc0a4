"""Frames to the socket: each one HTTP chunk, without a task switch or a queue.

aiohttp prepares and ends the response. In between the frames go straight to the
transport, several of one wake-up in one `write` (each still its own chunk), and
the reader of tokens waits only while the client's socket is full.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from aiohttp import HttpVersion11, web

_HIGH_WATER: Final = 64 * 1024
"""Bytes in the transport's buffer above which the tokens wait (asyncio's own default)."""

STREAM_HEADERS: Final = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}


class ClientGone(ConnectionError):
    """The client left, or does not read in time."""


class FrameWriter:
    """The body of one streamed response."""

    def __init__(self, request: web.Request, *, write_timeout: float) -> None:
        self._request = request
        self._response = web.StreamResponse(headers=STREAM_HEADERS)
        self._chunked = request.version >= HttpVersion11
        self._write_timeout = write_timeout

    async def start(self) -> None:
        """Send status and headers now; the first token may take its time."""
        writer = await self._response.prepare(self._request)
        if writer is None:
            raise ClientGone
        self._writer = writer
        writer.send_headers()

    async def send(self, frames: Sequence[bytes]) -> None:
        """Write frames; wait while the client's socket is full.

        Raises ClientGone when the client has left or exceeds the write timeout.
        """
        transport = self._transport()
        if self._chunked:
            transport.write(b"".join([b"%x\r\n%b\r\n" % (len(f), f) for f in frames]))
        else:
            transport.write(b"".join(frames))
        if transport.get_write_buffer_size() > _HIGH_WATER:
            await self._drain(transport)

    async def finish(self) -> web.StreamResponse:
        """End the response as a success."""
        await self._response.write_eof()
        return self._response

    def drop(self) -> web.StreamResponse:
        """Let the client have what was written, then close without the final chunk."""
        transport = self._request.transport
        if transport is not None:
            transport.close()
            asyncio.get_running_loop().call_later(self._write_timeout, transport.abort)
        return self._response

    async def _drain(self, transport: asyncio.Transport) -> None:
        try:
            async with asyncio.timeout(self._write_timeout):
                await self._writer.drain()
        except TimeoutError:
            transport.abort()
            raise ClientGone from None

    def _transport(self) -> asyncio.Transport:
        transport = self._request.transport
        if transport is None or transport.is_closing():
            raise ClientGone
        return transport
