"""Builds the aiohttp application from the table of routes; errors as the contract's JSON."""

from __future__ import annotations

import functools
import logging
import time
import uuid
from typing import Final

import orjson
from aiohttp import HttpVersion10, HttpVersion11, web

from proxy import SERVER_NAME, legacy
from proxy.access import Group
from proxy.body_memory import SHARE
from proxy.departure import ClientGone
from proxy.gateway import GATEWAY, Gateway
from proxy.handlers.openapi import DESCRIPTION, Description
from proxy.listeners import EVERYTHING, Listener
from proxy.logs import PRIVATE
from proxy.openapi import describe
from proxy.request_log import (
    CALLER,
    IDS,
    QUIET,
    REQUEST_UUID,
    TRACE,
    X_REQUEST_ID,
    Ids,
    finished,
)
from proxy.routes import ROUTES, Handler, Route
from translators.errors import (
    AccessRefused,
    BadRequest,
    GatewayError,
    IncompleteGeneration,
    NotFound,
    Unauthorized,
)
from translators.trace_context import trace_context

log = logging.getLogger(__name__)

LEGACY: Final = web.RequestKey("legacy", bool)
"""Set for requests to legacy routes."""


def build_app(gateway: Gateway) -> web.Application:
    """The application that serves one gateway."""
    app = web.Application(middlewares=[_account_for])
    app[GATEWAY] = gateway
    app[DESCRIPTION] = Description(lambda models: orjson.dumps(describe(gateway.contract, models)))
    for route in ROUTES:
        handler = guarded(route)
        if route.legacy:
            handler = _noted(handler, route.path)
        _add(app, route.method, route.path, handler)
        if route.method == "GET":
            _add(app, "HEAD", route.path, handler)
    _add(app, "*", "/v2/models/{model}/versions/{rest:.*}", _no_versions)
    _add(app, "*", "/{rest:.*}", _no_route)
    app.on_response_prepare.append(_mark_response)
    return app


def _add(app: web.Application, method: str, path: str, handler: Handler) -> None:
    # aiohttp would invite every body (Expect: 100-continue) before the checks; `read_body` does it.
    app.router.add_route(method, path, handler, expect_handler=_not_yet)


async def _not_yet(request: web.Request) -> None:
    """Neither invite the body nor refuse it."""


async def _no_route(request: web.Request) -> web.StreamResponse:
    raise NotFound("there is no such route")


def guarded(route: Route) -> Handler:
    """The route's handler behind the keys of its group, with a share of the memory for bodies.

    Where the route is not served, at the address of another listener, it does not exist.
    The handler finds the key's name in `request[CALLER]`.
    """
    quiet = route.group is Group.HEALTH or route.listener is Listener.METRICS

    @functools.wraps(route.handler)
    async def entrance(request: web.Request) -> web.StreamResponse:
        if route.listener not in getattr(request.protocol, "serves", EVERYTHING):
            return await _no_route(request)
        gateway = request.app[GATEWAY]
        request[QUIET] = quiet
        with (
            gateway.access.entry(route.group, request.headers) as caller,
            gateway.bodies.share() as share,
        ):
            request[SHARE] = share
            if caller is not None:
                request[CALLER] = caller
            return await route.handler(request)

    return entrance


def _noted(handler: Handler, path: str) -> Handler:
    """`handler` of a legacy route: its use is counted, and its answers say that it is legacy."""

    @functools.wraps(handler)
    async def counted(request: web.Request) -> web.StreamResponse:
        request[LEGACY] = True
        try:
            return await handler(request)
        finally:
            client = request.get(CALLER)
            who = legacy.family(request.headers.get("User-Agent")) if client is None else client
            request.app[GATEWAY].metrics.legacy.labels(path, who).inc()

    return counted


async def _no_versions(request: web.Request) -> web.StreamResponse:
    raise NotFound("model versions are not supported: leave /versions/... out of the path")


@web.middleware
async def _account_for(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Give the request its ids, an answer to its errors, and the log its one line at its end."""
    request[IDS] = Ids(request)
    tracing = request.app[GATEWAY].tracing
    span, context = None, trace_context(request.headers)
    if tracing is not None:
        span, context = tracing.begin(context)
    request[TRACE] = context
    started, status = time.monotonic(), None
    try:
        try:
            _check_version(request)
            response = await handler(request)
        except Exception as error:
            response = _answer_to(request, error)
        status = response.status
        return response
    finally:
        fields = finished(request, status, started)
        if tracing is not None:
            tracing.end(span, fields)


def _check_version(request: web.Request) -> None:
    """The parser lets other versions through, which nobody here speaks."""
    if request.version not in (HttpVersion10, HttpVersion11):
        raise BadRequest("only HTTP/1.1 and HTTP/1.0 are spoken here")


def _answer_to(request: web.Request, error: Exception) -> web.StreamResponse:
    if isinstance(error, GatewayError):
        if isinstance(error, AccessRefused):
            request.app[GATEWAY].metrics.access_refused.labels(error.status).inc()
        return _answer(request, error)
    if isinstance(error, web.HTTPException):
        return _answer(request, _from_http(error))
    if isinstance(error, ClientGone):
        raise error
    name = request.match_info.handler.__name__
    log.error("unexpected failure of %s", name, exc_info=error, extra=PRIVATE)
    return _answer(request, IncompleteGeneration("the request failed inside the gateway"))


def _answer(request: web.Request, error: GatewayError) -> web.Response:
    if request.writer.output_size > 0:
        raise ConnectionError("a response is under way: it is cut off, not followed by another")
    response = error_response(error, openai=_is_openai(request.path))
    uninvited = "Expect" in request.headers and not request.content.is_eof()
    if uninvited or isinstance(error, BadRequest):
        # Nobody knows where the body ends, so no request can follow it.
        response.force_close()
    return response


def _from_http(error: web.HTTPException) -> GatewayError:
    if error.status == 404:
        return NotFound("there is no such route")
    return BadRequest(error.reason)


def _is_openai(path: str) -> bool:
    """Whether clients of the OpenAI API ask there; the list of models is also the contract's."""
    return path.startswith("/v1/") and path != "/v1/models"


def error_response(error: GatewayError, *, openai: bool = False) -> web.Response:
    """The JSON answer of a failure before the first byte (contract §1), or OpenAI's."""
    body = error.openai_body() if openai else error.body()
    response = web.Response(status=error.status, body=body, content_type="application/json")
    if error.retry_after is not None:
        response.headers["Retry-After"] = str(error.retry_after)
    if isinstance(error, Unauthorized):
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


async def _mark_response(request: web.Request, response: web.StreamResponse) -> None:
    ids = request.get(IDS)
    if ids is not None:
        response.headers[REQUEST_UUID] = ids.uuid
        if ids.other is not None:
            response.headers[X_REQUEST_ID] = ids.other
    mark(response)
    if LEGACY in request:
        response.headers.extend(request.app[GATEWAY].legacy_headers)


def mark(response: web.StreamResponse) -> None:
    """What every response carries: its id, and no more about us than a name."""
    response.headers.setdefault(REQUEST_UUID, uuid.uuid4().hex)
    response.headers["Server"] = SERVER_NAME
