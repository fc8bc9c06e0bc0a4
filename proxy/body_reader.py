"""Reading a request body: bounded in size and time, and never decoded."""

from __future__ import annotations

import asyncio
from typing import Protocol, cast

from aiohttp import HttpVersion11, web

from proxy.body_memory import SHARE
from proxy.departure import ClientGone
from translators.errors import BadRequest, BodyTooLarge, UnsupportedEncoding


class Connection(Protocol):
    """What is told while a body is read (see `proxy.connections`)."""

    def waits(self) -> None:
        """It is for the client to send something."""

    def answers(self) -> None:
        """It is for us to answer."""


async def read_body(request: web.Request, *, limit: int, timeout: float) -> bytes:
    """The whole body, at most `limit` bytes within `timeout` seconds.

    Raises UnsupportedEncoding, BodyTooLarge or BadRequest, and ServiceUnavailable
    when all bodies together take too much memory. No more than the limit is ever
    held; a declared length over it is refused unread.
    """
    if "Content-Encoding" in request.headers:
        raise UnsupportedEncoding("a request body with Content-Encoding is not accepted")
    if request.headers.get("Transfer-Encoding", "chunked").strip().lower() != "chunked":
        raise BadRequest("of transfer codings only chunked is understood")
    if request.content_length is not None and request.content_length > limit:
        raise _too_large(limit)
    connection = cast(Connection, request.protocol)
    try:
        connection.waits()
        async with asyncio.timeout(timeout):
            await _invite(request)
            return await _collect(request, limit)
    except TimeoutError:
        raise BadRequest(f"the request body did not arrive within {timeout:g} s") from None
    except web.RequestPayloadError:
        raise BadRequest("the request body is malformed or was cut off") from None
    finally:
        connection.answers()


async def _invite(request: web.Request) -> None:
    """Let a client that asks first send its body: nothing speaks against it any more."""
    expects = request.headers.get("Expect", "").lower() == "100-continue"
    if expects and request.version >= HttpVersion11 and not request.content.is_eof():
        try:
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        except ConnectionError:
            raise ClientGone from None
        # No part of the answer: an error may still become one.
        request.writer.output_size = 0


async def _collect(request: web.Request, limit: int) -> bytes:
    body = bytearray()
    share = request[SHARE]
    async for chunk in request.content.iter_any():
        if len(body) + len(chunk) > limit:
            raise _too_large(limit)
        share.grow(len(chunk))
        body += chunk
    return bytes(body)


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"the request body is larger than {limit} bytes")
