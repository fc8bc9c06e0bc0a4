"""Health and metrics: answered from the gateway's state, never by asking the engine."""

from __future__ import annotations

import orjson
from aiohttp import web

from proxy.gateway import GATEWAY
from proxy.metrics import CONTENT_TYPE


async def live(request: web.Request) -> web.Response:
    """200 while the process works, whatever the engine does."""
    return web.Response()


async def ready(request: web.Request) -> web.Response:
    """200 when the engine can take work, else 503 with the reason."""
    obstacle = request.app[GATEWAY].obstacle
    if obstacle is None:
        return web.Response()
    body = orjson.dumps({"message": obstacle})
    return web.Response(status=503, body=body, content_type="application/json")


async def metrics(request: web.Request) -> web.Response:
    """Prometheus text: ours and vLLM's."""
    body = request.app[GATEWAY].metrics.render()
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})
