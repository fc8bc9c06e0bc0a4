"""A gateway in front of a real vLLM server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from proxy.engines.base import ModelInfo
from proxy.engines.remote import RemoteEngine, UpstreamOptions
from tests.support import RunningGateway, serving


@dataclass(frozen=True)
class RemoteGateway:
    """The session's sidecar."""

    running: RunningGateway
    engine: RemoteEngine
    url: str
    """Of the vLLM server behind it."""

    @property
    def info(self) -> ModelInfo:
        return self.running.gateway.info

    def held(self) -> int:
        """Requests that the server works on, as it shows them."""
        load = self.engine.load()
        return load.running + load.waiting


@asynccontextmanager
async def remote_gateway(url: str, **settings: Any) -> AsyncIterator[RemoteGateway]:
    """A gateway in front of the vLLM server at `url`."""
    engine = RemoteEngine(UpstreamOptions(urls=(url,), check_period=0.1))
    async with serving(engine, **settings) as running:
        yield RemoteGateway(running, engine, url)
