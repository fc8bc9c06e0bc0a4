"""HTTP with one vLLM server: bounded answers, and every failure mapped here.

A request that never reached the server, or whose connection broke before the
first byte of an answer, is a ConnectionFailedError and may be tried again;
everything else is a GatewayError with the contract's status.
"""

from __future__ import annotations

import asyncio
import io
import logging
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Final

import aiohttp
import orjson
from multidict import CIMultiDict
from yarl import URL

from proxy import SERVER_NAME
from proxy.engines.openai import OpenAIRequest
from proxy.engines.remote.message import LargeBody
from translators.errors import (
    GatewayError,
    GenerationError,
    IncompleteGeneration,
    ServiceUnavailable,
)

log = logging.getLogger(__name__)

_KEPT_ALIVE: Final = 4.0
"""Seconds an idle connection is kept: less than the 5 of vLLM's own default."""
_INLINE_BODY: Final = 1024 * 1024
"""Bytes of a request body above which it is sent in pieces."""
_SMALL: Final = 4 * 1024 * 1024
"""Bytes of an ordinary answer."""
_RETRY_AFTER: Final = range(1, 3601)
"""Seconds of Retry-After that are passed on; others are cut to this range."""
_OK: Final = 200
_BUSY: Final = (429, 503)
_CLIENT_ERRORS: Final = range(400, 500)
_INVALID: Final = (400, 422)
_FAULT: Final = 500
_NO_HEADERS: Final[Mapping[str, str]] = {}
_JSON: Final = {"Content-Type": "application/json"}
_BODILESS: Final = ("GET", "HEAD")
BROKEN: Final = (aiohttp.ClientError, ConnectionError)
"""How a connection's end in the middle of an answer shows."""
STREAM_TYPE: Final = "text/event-stream"


class ConnectionFailedError(Exception):
    """No byte of an answer came. `reached` says whether there was a connection at all."""

    def __init__(self, *, reached: bool) -> None:
        super().__init__("broken" if reached else "unreachable")
        self.reached = reached

    def answer(self) -> GatewayError:
        """What the client is told when nobody else can be asked."""
        if self.reached:
            return IncompleteGeneration("the engine's connection broke")
        return ServiceUnavailable("the engine cannot be reached", retry_after=_RETRY_AFTER[0])


_READ_AHEAD: Final = 16 * 1024
"""Bytes of an answer that aiohttp buffers before it stops reading; it may double them, and one
read of the socket comes on top."""


_COMPLAINT: Final = 64 * 1024
"""Bytes of an answer that is no 200 which are looked at."""


class AnswerTooLargeError(Exception):
    """An answer exceeds its bound."""


class RefusedError(GenerationError):
    """The server says no to a request, with this HTTP status."""

    def __init__(self, code: int) -> None:
        super().__init__("the engine refuses this request")
        self.code = code
        self.said = b""
        """The server's own words, where they were read. They may quote the prompt."""

    @property
    def is_about_content(self) -> bool:
        """Whether the request itself is at fault, not its key, its path or its size."""
        return self.code in _INVALID


class FailedError(IncompleteGeneration):
    """The server fails on a request, and perhaps because of it."""

    said = b""
    is_about_content = True


class Client:
    """Connections to one server. `url` may have a path, which comes before vLLM's own."""

    def __init__(self, url: str, *, api_key: str | None, connect_timeout: float) -> None:
        base = URL(url)
        self.name = str(base.with_user(None).with_query(None).with_fragment(None))
        self._base = self.name.rstrip("/")
        self._headers = {"Accept-Encoding": "identity", "User-Agent": SERVER_NAME}
        if api_key is not None:
            self._headers["Authorization"] = f"Bearer {api_key}"
        # Streams may last for hours: what bounds them are the clocks of contract §5.
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout)
        self._pooled = _session(self._headers, timeout, keepalive_timeout=_KEPT_ALIVE)
        self._fresh = _session(self._headers, timeout, force_close=True)

    async def close(self) -> None:
        """Close every connection."""
        await self._pooled.close()
        await self._fresh.close()

    async def stream(
        self,
        path: str,
        document: Any,
        headers: Mapping[str, str] = _NO_HEADERS,
        *,
        fresh: bool = False,
    ) -> aiohttp.ClientResponse:
        """Ask for server-sent events; returns when the answer's head is there.

        `fresh` takes a new connection, for when a kept one was dead. The caller
        closes the response. Raises ConnectionFailedError and GatewayError.
        """
        response = await self._send("POST", path, document, headers, fresh=fresh)
        try:
            _check_head(self.name, response)
            if response.content_type != STREAM_TYPE:
                raise IncompleteGeneration("the engine's answer is no stream")
        except GatewayError as error:
            log.warning("%s answers a request with %d: %s", self.name, response.status, error)
            response.release()
            raise
        return response

    async def ask(
        self,
        method: str,
        path: str,
        document: Any = None,
        *,
        within: float,
        limit: int = _SMALL,
        fresh: bool | None = None,
    ) -> bytes:
        """The body of a 200. Raises ConnectionFailedError, AnswerTooLargeError, GatewayError.

        `fresh` asks over a new connection, its opposite over a kept one; None over a kept
        one, and once more over a new one when that turns out to be dead. vLLM 0.23 closes
        some a moment after an answer without a word of it.
        """
        try:
            async with asyncio.timeout(within):
                try:
                    return await self._answer(method, path, document, limit, fresh=bool(fresh))
                except ConnectionFailedError as failure:
                    if fresh is not None or not failure.reached:
                        raise
                return await self._answer(method, path, document, limit, fresh=True)
        except TimeoutError:
            raise IncompleteGeneration("the engine did not answer in time") from None
        except BROKEN:
            raise IncompleteGeneration("the engine's connection broke") from None

    async def _answer(
        self, method: str, path: str, document: Any, limit: int, *, fresh: bool
    ) -> bytes:
        response = await self._send(method, path, document, fresh=fresh)
        try:
            _check_head(self.name, response)
            return await _whole_body(response, limit)
        except RefusedError as error:
            error.said = await _beginning(response, _COMPLAINT)
            raise
        finally:
            # Closes the connection unless the whole answer was read.
            response.release()

    async def _send(
        self,
        method: str,
        path: str,
        document: Any,
        headers: Mapping[str, str] = _NO_HEADERS,
        *,
        fresh: bool,
    ) -> aiohttp.ClientResponse:
        if isinstance(document, LargeBody):
            large = {**headers, **_JSON, "Content-Length": str(document.length)}
            return await self._request(method, path, document, large.items(), fresh=fresh)
        data = None if document is None else orjson.dumps(document)
        sent = {**headers, **({} if document is None else _JSON)}
        return await self._request(method, path, data, sent.items(), fresh=fresh)

    async def forward(self, request: OpenAIRequest, *, fresh: bool) -> aiohttp.ClientResponse:
        """Pass a client's request on as it is; its answer, whatever the status.

        Our own key for the server takes the place of the client's.
        """
        ours = {name.lower() for name in self._headers} & {"authorization"}
        headers = [pair for pair in request.headers if pair[0].lower() not in ours]
        data = request.body or (None if request.method in _BODILESS else b"")
        return await self._request(request.method, request.target, data, headers, fresh=fresh)

    async def _request(
        self,
        method: str,
        target: str,
        data: bytes | LargeBody | None,
        headers: Iterable[tuple[str, str]],
        *,
        fresh: bool,
    ) -> aiohttp.ClientResponse:
        session = self._fresh if fresh else self._pooled
        try:
            response = await session.request(
                method,
                # Encoded: the library must not tidy up what the server has to judge.
                URL(self._base + target, encoded=True),
                data=None if data is None else _body(data),
                headers=CIMultiDict(headers),
                skip_auto_headers=("Content-Type",),
                allow_redirects=False,
            )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
            raise ConnectionFailedError(reached=False) from None
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, ConnectionError):
            raise ConnectionFailedError(reached=True) from None
        except aiohttp.ClientError as error:
            log.warning("%s answers no valid HTTP: %s", self.name, type(error).__name__)
            raise IncompleteGeneration("the engine's answer is not valid HTTP") from None
        _break_with_connection(response)
        return response


def _session(
    headers: Mapping[str, str], timeout: aiohttp.ClientTimeout, **connector: Any
) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, **connector),
        headers=headers,
        timeout=timeout,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        read_bufsize=_READ_AHEAD,
    )


def _break_with_connection(response: aiohttp.ClientResponse) -> None:
    """Wake whoever reads this answer when its connection goes without a word.

    aiohttp closes a connection on which it finds malformed chunks, but tells
    the reader of the body nothing, who would wait for ever.
    """
    content, connection = response.content, response.connection
    protocol = None if connection is None else connection.protocol
    closed = None if protocol is None else protocol.closed
    if closed is None or content.is_eof():
        return

    def broken(_: object) -> None:
        if not content.is_eof() and content.exception() is None:
            content.set_exception(aiohttp.ClientPayloadError("malformed body"))

    def ended() -> None:
        closed.remove_done_callback(broken)

    closed.add_done_callback(broken)
    content.on_eof(ended)
    # One per connection, however many requests it carries.
    closed.remove_done_callback(_look_at)
    closed.add_done_callback(_look_at)


def _look_at(closed: asyncio.Future[None]) -> None:
    """Take note of how a connection ended, or asyncio would complain that nobody did."""
    if not closed.cancelled():
        closed.exception()


def _body(data: bytes | LargeBody) -> bytes | io.BytesIO | AsyncIterator[bytes]:
    if isinstance(data, LargeBody):
        return data.blocks()
    return data if len(data) <= _INLINE_BODY else io.BytesIO(data)


def unread(content: aiohttp.StreamReader, size: int = -1) -> bytes:
    """What a broken body had brought before it broke, at most `size` bytes; empty at its end.

    Of a body that has an exception aiohttp gives nothing any more, though it holds the bytes.
    """
    return content._read_nowait(size)  # noqa: SLF001  # its public twin raises first


async def _whole_body(response: aiohttp.ClientResponse, limit: int) -> bytes:
    body = bytearray()
    async for block in response.content.iter_any():
        body += block
        if len(body) > limit:
            raise AnswerTooLargeError
    return bytes(body)


async def _beginning(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """As far as it comes: the status has said what matters."""
    body = bytearray()
    try:
        async for block in response.content.iter_any():
            body += block
            if len(body) > limit:
                break
    except BROKEN:
        body += unread(response.content)
    return bytes(body)


def _check_head(name: str, response: aiohttp.ClientResponse) -> None:
    """Raise the GatewayError that stands for anything but a readable 200."""
    if response.status != _OK:
        log.debug("%s answers %s with %d", name, response.url.path, response.status)
        error = refusal(response.status, response.headers.get("Retry-After"))
        # For the operator's log; a client sees the message only.
        error.add_note(f"{response.url.path} answers {response.status}")
        raise error
    if response.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise IncompleteGeneration("the engine's answer is compressed")


def refusal(status: int, retry_after: str | None = None) -> GatewayError:
    """The contract's error for an upstream's status (contract §1).

    The upstream's own text stays behind: it may quote the prompt.
    """
    if status in _BUSY:
        return ServiceUnavailable("the engine is busy", retry_after=seconds_of(retry_after))
    if status in _CLIENT_ERRORS:
        return RefusedError(status)
    if status == _FAULT:
        return FailedError("the engine failed on this request")
    return IncompleteGeneration("the engine failed on this request")


def seconds_of(retry_after: str | None) -> int:
    """A Retry-After header, seconds or a date, as whole seconds within reason."""
    if retry_after is None:
        return _RETRY_AFTER[0]
    seconds = int(retry_after[:9]) if retry_after.isdecimal() else _until(retry_after)
    return min(max(seconds, _RETRY_AFTER[0]), _RETRY_AFTER[-1])


def _until(date: str) -> int:
    try:
        return round(parsedate_to_datetime(date).timestamp() - time.time())
    except (ValueError, OverflowError):
        return 0
