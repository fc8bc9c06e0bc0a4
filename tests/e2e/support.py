"""What the tests on the real engine share: asking, streaming by hand, waiting for an event."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import (
    MODEL,
    Connection,
    RawResponse,
    RunningGateway,
    connection,
    frame_json,
    read_response,
    request_bytes,
)

if TYPE_CHECKING:
    from tests.e2e.engines import SharedEngine

NAMES = (MODEL, "smollm2")
"""What the engine serves its model as: the page's name, and a second one."""
PATIENCE = 120.0
"""Seconds after which an answer of the real model will not come any more."""
E2E = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="session")]
"""The marks of a module on the session's engine: they share its event loop."""


@dataclass(frozen=True)
class RealGateway:
    """The session's gateway and what is behind it."""

    running: RunningGateway
    engine: SharedEngine
    others: tuple[SharedEngine, ...] = ()
    """Of the workers beside the first one: clients of the same engine core."""

    @property
    def unfinished(self) -> int:
        """Requests that vLLM's front ends still know."""
        return sum(engine.unfinished for engine in (self.engine, *self.others))

    @property
    def idle(self) -> bool:
        """Whether nothing is left of any request, in vLLM's two halves and in ours."""
        load = self.engine.load()
        live = any(gateway.live for gateway in self.running.gateways)
        return not (self.unfinished or load.running or load.waiting or live)

    def sample(self, name: str, **labels: str) -> float:
        """A figure of generate_stream as /metrics shows it, 0 when there is none yet."""
        registry = self.running.gateway.metrics.registry
        wanted = {"route": "generate_stream", **labels}
        return registry.get_sample_value(f"mindie_gateway_{name}", wanted) or 0.0

    async def ids(self, text: str) -> list[int]:
        return await self.engine.tokenize(text)


async def ask(
    running: RunningGateway, text: str, *, top: dict[str, Any] | None = None, **parameters: Any
) -> RawResponse:
    """One request with details; `top` stands at the top level, the rest under parameters."""
    body = {"text_input": text, "parameters": {"details": True, **parameters}, **(top or {})}
    return await exchange(running, request_bytes(body))


async def exchange(running: RunningGateway, raw: bytes) -> RawResponse:
    """One raw request and its whole answer, with the patience that a real model needs."""
    async with connection(running.port) as client, asyncio.timeout(PATIENCE):
        client.send(raw)
        return await read_response(client.reader)


_TIMES = re.compile(rb'"(prefill_time|decode_time|queue_wait_time)":(?:null|[0-9.e-]+)')


def without_times(response: RawResponse) -> list[bytes]:
    """The frames as they stood on the wire, the figures of their times taken out."""
    assert response.status == 200, response.body
    assert response.complete
    return [_TIMES.sub(rb'"\1":0', chunk) for chunk in response.chunks]


def text_of(response: RawResponse) -> str:
    """The whole text of a good stream."""
    assert response.status == 200, response.body
    assert response.complete
    return "".join(frame["text_output"] for frame in response.frames)


def details(response: RawResponse, key: str) -> list[Any]:
    """One key of `details`, frame by frame."""
    return [frame["details"].get(key) for frame in response.frames]


def finish_reason(response: RawResponse) -> str:
    """The finish reason, which only the last frame has."""
    *before, last = details(response, "finish_reason")
    assert before == [None] * len(before)
    return str(last)


class OpenStream:
    """An answer that is read frame by frame, by a client that may leave."""

    def __init__(self, client: Connection) -> None:
        self._client = client

    async def accepted(self) -> None:
        """Wait for the head of the answer, which the engine's acceptance sends: it must be 200."""
        async with asyncio.timeout(PATIENCE):
            head = await read_response(self._client.reader, head_only=True)
        assert head.status == 200

    async def frame(self) -> Any:
        """The next frame."""
        chunk = await self._chunk()
        assert chunk, "the stream has ended"
        return frame_json(chunk)

    async def rest(self) -> tuple[list[Any], bool]:
        """All frames that still come, and whether the final chunk came after them."""
        frames = []
        try:
            while chunk := await self._chunk():
                frames.append(frame_json(chunk))
        except (asyncio.IncompleteReadError, ConnectionError):
            return frames, False
        return frames, True

    async def leave(self) -> None:
        await self._client.close()

    async def _chunk(self) -> bytes:
        reader = self._client.reader
        async with asyncio.timeout(PATIENCE):
            size = int(await reader.readuntil(b"\r\n"), 16)
            return (await reader.readexactly(size + 2))[:-2]


@asynccontextmanager
async def streaming(port: int, text: str, **parameters: Any) -> AsyncIterator[OpenStream]:
    """Send a request and wait until it is accepted; the connection closes at the end."""
    body = {"text_input": text, "parameters": {"details": True, **parameters}}
    async with connection(port) as client:
        client.send(request_bytes(body))
        stream = OpenStream(client)
        await stream.accepted()
        yield stream


async def eventually(holds: Callable[[], bool], *, within: float, what: str = "") -> float:
    """Seconds until `holds`, which is looked at every few milliseconds; fails after `within`."""
    begin = time.monotonic()
    while not holds():
        elapsed = time.monotonic() - begin
        assert elapsed < within, f"not within {within} s: {what or holds}"
        await asyncio.sleep(0.005)
    return time.monotonic() - begin
