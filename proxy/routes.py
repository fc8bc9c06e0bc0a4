"""The table of routes: what is served, by whom, and on which listener."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Final, NamedTuple

from aiohttp import web

from proxy.access import Group
from proxy.handlers.generate import generate
from proxy.handlers.generate_stream import generate_stream
from proxy.handlers.health import live, metrics, ready
from proxy.handlers.infer import infer
from proxy.handlers.stop_infer import stop_infer

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Listener(Enum):
    """Routes that can have an address of their own. By default one serves all."""

    SERVICE = "service"
    MANAGEMENT = "management"
    METRICS = "metrics"


class Route(NamedTuple):
    """One route: GET answers HEAD as well. Its group says which API keys open it."""

    method: str
    path: str
    handler: Handler
    group: Group = Group.SERVICE
    listener: Listener = Listener.SERVICE


ROUTES: Final = (
    Route("POST", "/v2/models/{model}/generate_stream", generate_stream),
    Route("POST", "/v2/models/{model}/generate", generate),
    Route("POST", "/v2/models/{model}/infer", infer),
    Route("POST", "/v2/models/{model}/stopInfer", stop_infer),
    Route("GET", "/v2/health/live", live, Group.HEALTH, Listener.MANAGEMENT),
    Route("GET", "/v2/health/ready", ready, Group.HEALTH, Listener.MANAGEMENT),
    Route("GET", "/metrics", metrics, Group.MANAGEMENT, Listener.METRICS),
)
