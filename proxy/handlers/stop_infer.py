"""POST /v2/models/{model}/stopInfer: end every live request with a client's id (contract §7)."""

from __future__ import annotations

from typing import Final

import orjson
from aiohttp import web

from proxy.gateway import GATEWAY
from proxy.generation import parse, receive
from translators.errors import UnknownRequest
from translators.request import required_id

ROUTE: Final = "stopInfer"


async def stop_infer(request: web.Request) -> web.StreamResponse:
    """Ends every live request with the client's id; answers with the request's own JSON."""
    gateway = request.app[GATEWAY]
    with gateway.metrics.account(ROUTE) as account:
        _, body = await receive(gateway, request, request.match_info["model"])
        document = await parse(gateway, body)
        if not await gateway.stop(required_id(document)):
            raise UnknownRequest("there is no live request with this id")
        account.succeeded()
        return web.Response(body=orjson.dumps(document), content_type="application/json")
