"""/v1/*: the engine's own OpenAI API on the gateway's address, for clients that have moved on."""

from __future__ import annotations

import asyncio
from typing import Final, cast
from urllib.parse import unquote

from aiohttp import web

from proxy.access import Group
from proxy.body_reader import read_body
from proxy.departure import ClientGone
from proxy.engines.openai import OpenAIAnswer, OpenAIRequest, end_to_end
from proxy.frame_writer import Connection
from proxy.gateway import GATEWAY, Gateway
from proxy.handlers.metadata import openai_models
from proxy.metrics import Account
from proxy.request_log import ACCOUNT
from translators.errors import GatewayError, NotFound

ROUTE: Final = "v1"
PREFIX: Final = "/v1/"
_OURS: Final = ("date", "server", "requestuuid")
"""Headers of an answer that the gateway writes itself."""
_PER_HOP: Final = ("host", "content-length", "expect")
_KEYS: Final = ("authorization", "x-api-key")


async def openai(request: web.Request) -> web.StreamResponse:
    """What the engine's own OpenAI API answers, passed on block by block."""
    gateway = request.app[GATEWAY]
    with gateway.metrics.account(ROUTE) as account, gateway.passing():
        request[ACCOUNT] = account
        api = gateway.engine.openai
        if api is None:
            raise NotFound("there is no such route")
        answer = await api.open(await _read(gateway, request))
        try:
            return await _pass_on(request, answer, account)
        finally:
            answer.close()


async def models(request: web.Request) -> web.StreamResponse:
    """The engine's own list of models where it has an OpenAI API, else the same by the gateway."""
    has_api = request.app[GATEWAY].engine.openai is not None
    if request.method == "GET" and has_api:
        return await openai(request)
    return await openai_models(request)


async def _read(gateway: Gateway, request: web.Request) -> OpenAIRequest:
    settings = gateway.settings
    target = request.rel_url.raw_path_qs
    _check_target(request.rel_url.raw_path)
    if "Upgrade" in request.headers:
        raise NotFound("WebSocket connections are not passed on")
    gateway.check_taking_work()
    body = await read_body(request, limit=settings.body_limit, timeout=settings.body_timeout)
    # With keys of its own the gateway is who decides; they are not for the engine.
    own_keys = gateway.access.guards(Group.SERVICE)
    without = (*_PER_HOP, *(_KEYS if own_keys else ()))
    headers = end_to_end(request.headers.items(), without=without)
    return OpenAIRequest(request.method, target, headers, body)


def _check_target(path: str) -> None:
    """NotFound for a path that another server might take for one outside of /v1."""
    segments = unquote(path).replace("\\", "/").split("/")
    if not path.startswith(PREFIX) or {".", ".."} & set(segments):
        raise NotFound("there is no such route")


async def _pass_on(
    request: web.Request, answer: OpenAIAnswer, account: Account
) -> web.StreamResponse:
    response = web.StreamResponse(
        status=answer.status, headers=end_to_end(answer.headers, without=_OURS)
    )
    write_timeout = request.app[GATEWAY].settings.write_timeout
    try:
        await response.prepare(request)
        async for block in answer.blocks():
            async with asyncio.timeout(write_timeout):
                await response.write(block)
        await response.write_eof()
    except TimeoutError:
        _cut_off(request)
        raise ClientGone from None
    except GatewayError as error:
        account.broken(error)
        # What came before goes out, the end of the body does not: nobody takes it for the whole.
        cast(Connection, request.protocol).close_within(write_timeout)
        return response
    except ConnectionError:
        raise ClientGone from None
    account.passed_on(answer.status)
    return response


def _cut_off(request: web.Request) -> None:
    """Drop the connection at once, with what the client has not taken."""
    if request.transport is not None:
        request.transport.abort()
