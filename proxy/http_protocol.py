"""aiohttp's server protocol, with malformed HTTP answered as the contract says."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from typing import Any, Final, cast

from aiohttp import web
from aiohttp.http import RawRequestMessage
from aiohttp.http_exceptions import BadHttpMethod
from aiohttp.web_request import BaseRequest

from proxy.admission import RETRY_AFTER
from proxy.app import error_response, mark
from proxy.connections import Connections, Deadline
from proxy.departure import has_left
from proxy.gateway import Gateway
from proxy.listeners import EVERYTHING, Listener
from proxy.logs import PRIVATE
from translators.errors import (
    BadRequest,
    GatewayError,
    IncompleteGeneration,
    NotFound,
    ServiceUnavailable,
)

log = logging.getLogger(__name__)

_PARTING: Final = 0.1
"""Seconds in which a client that sends no more, or is turned away, still gets its answer."""
_LOOK: Final = 0.25
"""Seconds between looks at whether a client is still there while it is not read."""
_UNREAD: Final = 10.0
"""Seconds that it then has to read it."""
_REQUEST_LINE: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+ /[!-~]* HTTP/1\.[01]\r\n")


class HttpProtocol(web.RequestHandler):
    """Answers what never became a request: bad HTTP is 400 JSON, without a traceback."""

    # Memory of every open stream.
    __slots__ = (
        "_connections",
        "_guard",
        "_head",
        "_look",
        "_unknown_method",
        "_write_timeout",
        "serves",
    )

    def __init__(
        self,
        server: web.Server,
        *,
        connections: Connections,
        head_timeout: float,
        write_timeout: float,
        **options: Any,
    ) -> None:
        super().__init__(server, **options)
        self._write_timeout = write_timeout
        self.serves: frozenset[Listener] = EVERYTHING
        """What the address is for, at which the client came in."""
        self._guard: asyncio.TimerHandle | None = None
        self._look: asyncio.TimerHandle | None = None
        self._unknown_method = False
        """What was malformed is a whole request line whose method the parser does not know."""
        self._connections = connections
        self._head = Deadline(head_timeout, self.give_way)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._connections.opened(self):
            self._head.start()
        else:
            self._turn_away()

    def _turn_away(self) -> None:
        """All connections are answering: say so, without a look at the request."""
        transport = cast(asyncio.Transport, self.transport)
        # What the client sends is read and dropped: left unread, it would cost it our answer.
        self._force_close = True
        transport.write(_no_room())
        if transport.can_write_eof():
            transport.write_eof()
        self._later(_PARTING, transport.abort)

    def give_way(self) -> None:
        """Close at once: the client has sent nothing whole in all this time."""
        if self.transport is not None:
            self.transport.abort()

    async def _handle_request(self, *args: Any) -> Any:
        # Between two requests the connection waits for its client.
        self.answers()
        # aiohttp sets the timer of an idle connection again afterwards: in an open stream it would
        # only be half a kilobyte.
        self.keep_alive(True)
        try:
            return await super()._handle_request(*args)
        except asyncio.InvalidStateError:
            # aiohttp tells a shutdown that has given up waiting; the handler was cancelled.
            if self._handler_waiter is None or not self._handler_waiter.cancelled():
                raise
            raise asyncio.CancelledError from None
        finally:
            self.waits()

    async def finish_response(
        self, request: BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        finished = await super().finish_response(request, resp, start_time)
        if self.transport is not None and self.transport.get_write_buffer_size():
            await self._let_it_be_taken(self.transport)
        return finished

    async def _let_it_be_taken(self, transport: asyncio.Transport) -> None:
        """Wait for a client that has not read its whole answer, but no longer than it may take.

        What is closed with something unsent would stay for as long as the client.
        """
        # aiohttp waits until little is left; now until nothing is.
        transport.set_write_buffer_limits(high=0)
        try:
            async with asyncio.timeout(self._write_timeout):
                await self._drain_helper()
        except TimeoutError:
            transport.abort()
        except ConnectionError:
            return
        transport.set_write_buffer_limits()

    def answers(self) -> None:
        """The client has sent what is needed; it is for us to answer."""
        self._head.cancel()
        self._connections.answers(self)

    def waits(self) -> None:
        """It is for the client to send something."""
        self._connections.waits(self)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._waiter is not None and not self._waiter.done():
            # Some of a head, not all of it: however slowly it goes on, it ends in time.
            self._head.start()
        if self._messages and not isinstance(self._messages[-1][0], RawRequestMessage):
            self._unknown_method = _REQUEST_LINE.match(data) is not None
            self._break_body()

    def _break_body(self) -> None:
        """Malformed data has arrived: whoever reads a body that it cut off must know.

        aiohttp only queues its answer behind the request, which would wait for the rest.
        """
        if len(self._messages) > 1:
            body = self._messages[-2][1]
        elif self._current_request is not None:
            body = self._current_request.content
        else:
            return
        if not body.is_eof():
            body.set_exception(web.RequestPayloadError("malformed body"))
            body.feed_eof()

    def _pause_transport_reading(self) -> None:
        super()._pause_transport_reading()
        if self._look is None and self.transport is not None:
            loop = asyncio.get_running_loop()
            self._look = loop.call_later(_LOOK, self._look_for_departure)

    def _look_for_departure(self) -> None:
        """Reading is paused, so nothing else tells that the client of this request has left."""
        self._look = None
        transport, request = self.transport, self._current_request
        if transport is None or not (self._reading_paused or self._buffer_paused):
            return
        if request is not None and request.content.is_eof() and has_left(transport):
            transport.abort()
        else:
            self._look = asyncio.get_running_loop().call_later(_LOOK, self._look_for_departure)

    def close_within(self, seconds: float) -> None:
        """Send what is buffered, then close; abort when the client does not take it in time."""
        transport = self.transport
        if transport is not None:
            transport.close()
            self._later(seconds, transport.abort)

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        if self._guard is not None:
            self._guard.cancel()
        self._guard = asyncio.get_running_loop().call_later(seconds, action)

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self._connections.closed(self)
        self._head.cancel()
        for timer in (self._guard, self._look):
            if timer is not None:
                timer.cancel()

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio reads the answer
        """The client sends no more: it has left, or has only closed its half.

        The two look the same, so both end soon; an answer that is ready at once
        still goes out, for simple tools that close their half after asking.
        """
        idle = self._waiter is not None and not self._waiter.done()
        if idle or self.ssl_context is not None:
            return False
        self._later(_PARTING, lambda: self.close_within(_UNREAD))
        return True

    def handle_error(
        self,
        request: BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if request.writer.output_size > 0:
            raise ConnectionError("the client left, or the response cannot go on")
        response = error_response(self._error(status, exc))
        mark(response)
        response.force_close()
        return response

    def _error(self, status: int, exc: BaseException | None) -> GatewayError:
        if status == 500:
            log.error("a request failed outside its handler", exc_info=exc, extra=PRIVATE)
            return IncompleteGeneration("the request failed inside the gateway")
        log.debug("malformed HTTP: %s", type(exc).__name__)
        if isinstance(exc, BadHttpMethod) and self._unknown_method:
            return NotFound("there is no such route or method")
        return BadRequest("the request is not valid HTTP")


def _no_room() -> bytes:
    error = ServiceUnavailable("too many connections at once", retry_after=RETRY_AFTER)
    response = error_response(error)
    mark(response)
    response.headers["Connection"] = "close"
    response.headers["Content-Length"] = str(len(error.body()))
    head = "".join(f"{name}: {value}\r\n" for name, value in response.headers.items())
    return f"HTTP/1.1 503 Service Unavailable\r\n{head}\r\n".encode() + error.body()


def protocol_factory(
    server: web.Server, gateway: Gateway, serves: frozenset[Listener], **options: Any
) -> Callable[[], HttpProtocol]:
    """A factory of connections for `loop.create_server`; `options` are aiohttp's."""
    loop = asyncio.get_running_loop()

    def connection() -> HttpProtocol:
        protocol = HttpProtocol(
            server,
            loop=loop,
            connections=gateway.connections,
            head_timeout=gateway.settings.head_timeout,
            write_timeout=gateway.settings.write_timeout,
            access_log=None,
            keepalive_timeout=gateway.settings.keepalive_timeout,
            **options,
        )
        protocol.serves = serves
        return protocol

    return connection
