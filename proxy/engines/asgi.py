"""An ASGI application in this process as an engine's OpenAI API: no socket in between."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any, Final
from urllib.parse import unquote

from proxy.engines.openai import Headers, OpenAIAnswer, OpenAIRequest
from proxy.logs import PRIVATE
from translators.errors import GatewayError, IncompleteGeneration

log = logging.getLogger(__name__)

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

_HELD: Final = 64 * 1024
"""Bytes of an answer above which the application waits for its reader."""


class AsgiApi:
    """Runs one application. Its lifespan is the caller's business."""

    def __init__(self, application: Application) -> None:
        self._application = application
        self._running: set[asyncio.Task[None]] = set()

    async def open(self, request: OpenAIRequest) -> OpenAIAnswer:
        answer = _Answer(request.body)
        running = asyncio.create_task(answer.run(self._application, _scope(request)))
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        try:
            await answer.started()
        except BaseException:
            answer.close()
            raise
        return answer

    async def close(self) -> None:
        """End what still runs."""
        for task in list(self._running):
            task.cancel()


def _scope(request: OpenAIRequest) -> dict[str, Any]:
    path, _, query = request.target.partition("?")
    return {
        "type": "http",
        # Later versions leave it to the server to end an application whose client has left.
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [
            (name.lower().encode("latin-1", "replace"), value.encode("utf-8", "surrogateescape"))
            for name, value in request.headers
        ],
        "client": None,
        "server": None,
        "state": {},
    }


class _Answer:
    """What the application sends, until its reader has taken it. One reader, one writer."""

    def __init__(self, body: bytes) -> None:
        self.status = 0
        self.headers: Headers = ()
        self._request: bytes | None = body
        self._blocks: list[bytes] = []
        self._size = 0
        self._ended = False
        self._error: GatewayError | None = None
        self._left = asyncio.Event()
        self._news = asyncio.Event()
        self._room = asyncio.Event()

    async def run(self, application: Application, scope: dict[str, Any]) -> None:
        """The application's own task."""
        try:
            await application(scope, self._receive, self._send)
            if not self._ended:
                self._error = IncompleteGeneration("the engine's answer ended early")
        except Exception:
            log.exception("the OpenAI API failed on a request", extra=PRIVATE)
            self._error = IncompleteGeneration("the engine failed on this request")
        finally:
            self._ended = True
            self._news.set()

    async def started(self) -> None:
        """Wait for status and headers."""
        await self._news.wait()
        if not self.status:
            raise self._error or IncompleteGeneration("the engine gave no answer")

    async def blocks(self) -> AsyncIterator[bytes]:
        while True:
            await self._news.wait()
            self._news.clear()
            blocks, self._blocks, self._size = self._blocks, [], 0
            self._room.set()
            ended = self._ended
            if blocks:
                yield b"".join(blocks)
            if ended:
                break
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        self._left.set()
        self._room.set()

    async def _receive(self) -> Message:
        if self._request is not None:
            body, self._request = self._request, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.headers = tuple(_text(pair) for pair in message.get("headers", ()))
            self.status = message["status"]
        elif message["type"] == "http.response.body":
            await self._take(message)
        self._news.set()

    async def _take(self, message: Message) -> None:
        block = bytes(message.get("body", b""))
        self._ended = not message.get("more_body", False)
        self._blocks.append(block)
        self._size += len(block)
        while self._size > _HELD and not self._left.is_set():
            self._news.set()
            self._room.clear()
            await self._room.wait()


def _text(pair: tuple[bytes, bytes]) -> tuple[str, str]:
    return pair[0].decode("latin-1"), pair[1].decode("latin-1")
