"""aiohttp's server protocol, with malformed HTTP answered as the contract says."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from aiohttp import web
from aiohttp.http import RawRequestMessage
from aiohttp.web_request import BaseRequest

from proxy.app import error_response, mark
from proxy.departure import has_left
from proxy.listeners import EVERYTHING, Listener
from translators.errors import BadRequest, GatewayError, IncompleteGeneration

log = logging.getLogger(__name__)

_PARTING: Final = 0.1
"""Seconds in which a client that sends no more still gets what it asked for."""
_LOOK: Final = 0.25
"""Seconds between looks at whether a client is still there while it is not read."""
_UNREAD: Final = 10.0
"""Seconds that it then has to read it."""


class HttpProtocol(web.RequestHandler):
    """Answers what never became a request: bad HTTP is 400 JSON, without a traceback."""

    serves: frozenset[Listener] = EVERYTHING
    """What the address is for, at which the client came in."""
    _guard: asyncio.TimerHandle | None = None
    _look: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._messages and not isinstance(self._messages[-1][0], RawRequestMessage):
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
        if isinstance(exc, ConnectionError) or request.writer.output_size > 0:
            raise ConnectionError("the client left, or the response cannot go on")
        error: GatewayError
        if status == 500:
            log.error("a request failed outside its handler", exc_info=exc)
            error = IncompleteGeneration("the request failed inside the gateway")
        else:
            log.debug("malformed HTTP: %s", type(exc).__name__)
            error = BadRequest("the request is not valid HTTP")
        response = error_response(error)
        mark(response)
        response.force_close()
        return response


def protocol_factory(
    server: web.Server, serves: frozenset[Listener], **options: Any
) -> Callable[[], HttpProtocol]:
    """A factory of connections for `loop.create_server`; `options` are aiohttp's."""
    loop = asyncio.get_running_loop()

    def connection() -> HttpProtocol:
        protocol = HttpProtocol(server, loop=loop, **options)
        protocol.serves = serves
        return protocol

    return connection
