"""aiohttp's server protocol, with malformed HTTP answered as the contract says."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from aiohttp import web
from aiohttp.web_request import BaseRequest

from proxy.app import error_response, mark
from translators.errors import BadRequest, GatewayError, IncompleteGeneration

log = logging.getLogger(__name__)


class HttpProtocol(web.RequestHandler):
    """Answers what never became a request: bad HTTP is 400 JSON, without a traceback."""

    def handle_error(
        self,
        request: BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if request.writer.output_size > 0:
            raise ConnectionError("a response is under way, the connection is dropped")
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


def protocol_factory(server: web.Server, **options: Any) -> Callable[[], HttpProtocol]:
    """A factory of connections for `loop.create_server`; `options` are aiohttp's."""
    loop = asyncio.get_running_loop()

    def connection() -> HttpProtocol:
        return HttpProtocol(server, loop=loop, **options)

    return connection
