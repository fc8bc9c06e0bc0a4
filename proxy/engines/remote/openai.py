"""The upstreams' own OpenAI API, through the same choice of upstream as everything else."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol

import aiohttp

from proxy.engines.openai import Headers, OpenAIAnswer, OpenAIRequest
from proxy.engines.remote.client import BROKEN, unread
from proxy.engines.remote.upstream import Upstream
from translators.errors import IncompleteGeneration

log = logging.getLogger(__name__)


class Opening(Protocol):
    """Asks one server, over a new connection when `fresh`."""

    async def __call__(self, upstream: Upstream, *, fresh: bool) -> RemoteAnswer: ...


class RemoteOpenAI:
    """`somewhere` does a thing at the least busy server."""

    def __init__(self, somewhere: Callable[[Opening], Awaitable[RemoteAnswer]]) -> None:
        self._somewhere = somewhere

    async def open(self, request: OpenAIRequest) -> OpenAIAnswer:
        async def ask(upstream: Upstream, *, fresh: bool) -> RemoteAnswer:
            upstream.taken()
            try:
                response = await upstream.client.forward(request, fresh=fresh)
            except BaseException:
                upstream.left()
                raise
            return RemoteAnswer(upstream, response)

        return await self._somewhere(ask)


class RemoteAnswer:
    """One answer of one server."""

    def __init__(self, upstream: Upstream, response: aiohttp.ClientResponse) -> None:
        self.status = response.status
        self.headers: Headers = tuple(response.headers.items())
        self._upstream = upstream
        self._response = response
        self._closed = False

    async def blocks(self) -> AsyncIterator[bytes]:
        content = self._response.content
        try:
            while block := await content.readany():
                yield block
        except BROKEN:
            if block := unread(content):
                yield block
            log.warning("%s: an answer of /v1 broke off", self._upstream.name)
            self._upstream.suspect()
            raise IncompleteGeneration("the engine's connection broke") from None

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            # Gives the connection back after the end of the body, closes it before.
            self._response.release()
            self._upstream.left()
