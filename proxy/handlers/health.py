"""Health and metrics. Only the timed probe asks the engine; the rest is the gateway's state."""

from __future__ import annotations

import contextlib
from typing import Final

import orjson
from aiohttp import web

from proxy.gateway import GATEWAY
from proxy.metrics import CONTENT_TYPE
from translators.errors import NotFound, ServiceUnavailable

DEFAULT_SECONDS: Final = 10
MAX_SECONDS: Final = 600


async def live(request: web.Request) -> web.Response:
    """200 while the process works, whatever the engine does."""
    return _empty()


async def ready(request: web.Request) -> web.Response:
    """200 when the engine can take one more request, else 503 with the reason."""
    reason = await request.app[GATEWAY].why_not_ready()
    return _empty() if reason is None else _not_ready(reason)


async def model_ready(request: web.Request) -> web.Response:
    """The same for a served model; 404 for another."""
    # Until the engine has said which models it serves, nothing is ready.
    with contextlib.suppress(ServiceUnavailable):
        request.app[GATEWAY].check_model(request.match_info["model"])
    return await ready(request)


async def timed(request: web.Request) -> web.Response:
    """One real token within the given seconds, else 503."""
    gateway = request.app[GATEWAY]
    seconds = _seconds(request.match_info.get("seconds"))
    reason = await gateway.why_not_ready()
    if reason is None and not await gateway.probe.succeeds_within(seconds):
        reason = f"the engine made no token within {seconds} s"
    return _json(200, {"status": "healthy"}) if reason is None else _not_ready(reason)


async def metrics(request: web.Request) -> web.Response:
    """Prometheus text: the gateway's figures and vLLM's."""
    body = await request.app[GATEWAY].metrics_page()
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})


def _seconds(given: str | None) -> int:
    if given is None:
        return DEFAULT_SECONDS
    if len(given) > len(str(MAX_SECONDS)) or not 1 <= int(given) <= MAX_SECONDS:
        raise NotFound(f"the seconds of /health/timed-N must be from 1 to {MAX_SECONDS}")
    return int(given)


def _empty() -> web.Response:
    # aiohttp would say no length of a body that is empty when it is asked for the head only.
    return web.Response(headers={"Content-Length": "0"})


def _not_ready(reason: str) -> web.Response:
    return _json(503, {"message": reason})


def _json(status: int, document: dict[str, str]) -> web.Response:
    return web.Response(status=status, body=orjson.dumps(document), content_type="application/json")
