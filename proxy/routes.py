"""The table of routes: what is served, by whom, and on which listener."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from aiohttp import web

from proxy.access import Group
from proxy.handlers import health, metadata, tgi
from proxy.handlers.generate import generate
from proxy.handlers.generate_stream import generate_stream
from proxy.handlers.infer import infer
from proxy.handlers.openai import models, openai
from proxy.handlers.openapi import openapi
from proxy.handlers.stop_infer import stop_infer
from proxy.handlers.stop_service import stop_service
from proxy.listeners import Listener

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Route(NamedTuple):
    """One route: GET answers HEAD as well. Its group says which API keys open it."""

    method: str
    path: str
    handler: Handler
    group: Group = Group.SERVICE
    listener: Listener = Listener.SERVICE
    legacy: bool = False
    """Whether it belongs to the API that clients are to leave."""


_MODEL: Final = "/v2/models/{model}"
_MANAGED: Final = (Group.MANAGEMENT, Listener.MANAGEMENT)

ROUTES: Final = (
    Route("POST", f"{_MODEL}/generate_stream", generate_stream, legacy=True),
    Route("POST", f"{_MODEL}/generate", generate, legacy=True),
    Route("POST", f"{_MODEL}/infer", infer, legacy=True),
    Route("POST", f"{_MODEL}/stopInfer", stop_infer, legacy=True),
    Route("POST", "/generate_stream", tgi.generate_stream, legacy=True),
    Route("POST", "/generate", tgi.generate, legacy=True),
    Route("POST", "/", tgi.either, legacy=True),
    Route("GET", "/v2", metadata.server_metadata, legacy=True),
    Route("GET", _MODEL, metadata.model_metadata, legacy=True),
    Route("GET", f"{_MODEL}/config", metadata.model_config, legacy=True),
    Route("GET", "/v1/models", models),
    Route("*", "/v1/{rest:.*}", openai),
    Route("GET", "/openapi.json", openapi),
    Route("GET", "/info", metadata.tgi_info, *_MANAGED, legacy=True),
    Route("GET", f"{_MODEL}/getSlotCount", metadata.slot_count, *_MANAGED, legacy=True),
    Route("GET", "/v2/health/live", health.live, Group.HEALTH, Listener.MANAGEMENT),
    Route("GET", "/v2/health/ready", health.ready, Group.HEALTH, Listener.MANAGEMENT),
    Route("GET", f"{_MODEL}/ready", health.model_ready, Group.HEALTH, Listener.MANAGEMENT),
    Route("GET", "/health", health.ready, Group.HEALTH, Listener.MANAGEMENT),
    Route("GET", "/health/timed", health.timed, Group.HEALTH, Listener.MANAGEMENT),
    Route("GET", "/health/timed-{seconds:[0-9]+}", health.timed, Group.HEALTH, Listener.MANAGEMENT),
    Route("GET", "/stopService", stop_service, *_MANAGED),
    Route("GET", "/metrics", health.metrics, Group.MANAGEMENT, Listener.METRICS),
)
