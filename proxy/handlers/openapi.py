"""GET /openapi.json: what the gateway serves, as OpenAPI 3.1."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Final

from aiohttp import web

from proxy.gateway import GATEWAY


class Description:
    """The document for the served models, made once for each set of them."""

    def __init__(self, make: Callable[[tuple[str, ...]], bytes]) -> None:
        self.of = functools.cache(make)


DESCRIPTION: Final = web.AppKey("description", Description)


async def openapi(request: web.Request) -> web.Response:
    """This description."""
    document = request.app[DESCRIPTION].of(request.app[GATEWAY].names)
    return web.Response(body=document, content_type="application/json")
