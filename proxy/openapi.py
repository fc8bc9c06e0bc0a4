"""The gateway's own description: the table of routes, each with its wire format."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from proxy import SERVER_NAME, __version__
from proxy.access import Group
from proxy.handlers import health, metadata, tgi
from proxy.handlers.generate import generate
from proxy.handlers.generate_stream import generate_stream
from proxy.handlers.infer import infer
from proxy.handlers.openai import models, openai
from proxy.handlers.openapi import openapi
from proxy.handlers.stop_infer import stop_infer
from proxy.handlers.stop_service import stop_service
from proxy.routes import ROUTES, Handler, Route
from translators.contract import Contract
from translators.openapi import EVENTS, JSON, TEXT, Answer, Failures, Operation, document

_PATTERN_IN_PATH: Final = re.compile(r":[^}]+")


class Format(NamedTuple):
    """What a handler takes and gives."""

    tag: str
    request: str | None
    answers: tuple[Answer, ...]
    failures: Failures
    is_probe: bool = False


def _read(schema: str, failures: Failures) -> Format:
    return Format("about", None, (Answer(JSON, schema),), failures)


_READY: Final = Format("health", None, (Answer(None),), Failures.NONE, is_probe=True)
_TGI_EITHER: Final = (Answer(JSON, "TgiAnswers"), Answer(EVENTS, "TgiFrame"))

NOT_OURS: Final = (openai,)
"""Passed on as it is: the engine's own API has a description of its own."""
FORMATS: Final[dict[Handler, Format]] = {
    generate_stream: Format(
        "triton", "TritonRequest", (Answer(EVENTS, "TritonFrame"),), Failures.GENERATION
    ),
    generate: Format(
        "triton", "TritonRequest", (Answer(JSON, "TritonAnswer"),), Failures.GENERATION
    ),
    infer: Format("triton", "InferRequest", (Answer(JSON, "InferAnswer"),), Failures.GENERATION),
    stop_infer: Format("triton", "StopRequest", (Answer(JSON, "StopAnswer"),), Failures.STOP),
    tgi.generate_stream: Format("tgi", "TgiRequest", (Answer(EVENTS, "TgiFrame"),), Failures.TGI),
    tgi.generate: Format("tgi", "TgiRequest", (Answer(JSON, "TgiAnswer"),), Failures.TGI),
    tgi.either: Format("tgi", "TgiEitherRequest", _TGI_EITHER, Failures.TGI),
    metadata.server_metadata: _read("ServerMetadata", Failures.SERVER),
    metadata.model_metadata: _read("ModelMetadata", Failures.MODEL),
    metadata.model_config: _read("ModelConfig", Failures.MODEL),
    metadata.slot_count: _read("SlotCount", Failures.MODEL),
    metadata.tgi_info: _read("TgiInfo", Failures.SERVER),
    models: _read("Models", Failures.SERVER),
    health.live: _READY._replace(is_probe=False),
    health.ready: _READY,
    health.model_ready: _READY._replace(failures=Failures.LOOKUP),
    health.timed: Format(
        "health", None, (Answer(JSON, "Healthy"),), Failures.LOOKUP, is_probe=True
    ),
    health.metrics: Format("about", None, (Answer(TEXT),), Failures.NONE),
    # Switched off, as it is by default, it does not exist.
    stop_service: Format("management", None, (Answer(None),), Failures.LOOKUP),
    openapi: Format("about", None, (Answer(JSON, "OpenApi"),), Failures.NONE),
}


def describe(contract: Contract, models: Sequence[str] = ()) -> dict[str, Any]:
    """OpenAPI 3.1 of every route; `models` are the served ones, where they are known."""
    return document(
        operations(ROUTES), contract, title=SERVER_NAME, version=__version__, models=models
    )


def operations(routes: Iterable[Route]) -> Iterable[Operation]:
    """Every route with its format. KeyError for a handler that has none."""
    for route in routes:
        if route.handler in NOT_OURS:
            continue
        path = _PATTERN_IN_PATH.sub("", route.path)
        known = FORMATS[route.handler]
        yield Operation(
            method=route.method,
            path=path,
            name=_name(route.method, path),
            summary=(route.handler.__doc__ or "").splitlines()[0],
            needs_key=route.group is not Group.HEALTH,
            deprecated=route.legacy,
            **known._asdict(),
        )


def _name(method: str, path: str) -> str:
    words = re.findall(r"[A-Za-z0-9]+", path)
    return "_".join([method.lower(), *words])
