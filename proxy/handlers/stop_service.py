"""GET /stopService: the graceful stop, from the management listener, when it is switched on."""

from __future__ import annotations

from aiohttp import web

from proxy.gateway import GATEWAY
from translators.errors import NotFound


async def stop_service(request: web.Request) -> web.StreamResponse:
    """200 at once; what follows is what SIGTERM begins. A second call changes nothing."""
    gateway = request.app[GATEWAY]
    # HEAD asks about the route; it must not use it.
    if not gateway.settings.stop_service:
        raise NotFound("there is no such route")
    if request.method == "GET":
        gateway.request_stop()
    return web.Response()
