"""The clocks of contract §5: the next token, and the whole request.

One timer per request. A token only leaves its time on the stream; the timer
looks at it when it fires and sets itself again, so tokens cost nothing here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from operator import itemgetter

from proxy.engines.stream import TokenStream
from translators.errors import GenerationTimeout

CLIENT_TIMEOUT = "client timeout"
SERVER_TOKEN_TIMEOUT = "server tokenTimeout"
SERVER_E2E_TIMEOUT = "server e2eTimeout"


@dataclass(frozen=True, slots=True)
class Clock:
    """A limit in seconds, and what it is called when it runs out."""

    name: str
    seconds: float


def shorter(client: Clock, server: Clock) -> Clock:
    """The one that runs out first; the client's when both do."""
    return client if client.seconds <= server.seconds else server


def watched(
    stream: TokenStream, token: Clock, e2e: Clock, started: float
) -> AbstractContextManager[None]:
    """Break `stream` with GenerationTimeout when a clock runs out within the block.

    `started` is the loop time from which `e2e` counts.
    """
    return _Watch(stream, token, e2e, started + e2e.seconds)


@asynccontextmanager
async def in_time(token: Clock, e2e: Clock, since: float, started: float) -> AsyncIterator[None]:
    """Bound the wait before there is a stream by the same clocks.

    `since` is the loop time from which `token` counts, `started` that of `e2e`.
    """
    deadlines = ((since + token.seconds, token), (started + e2e.seconds, e2e))
    at, clock = min(deadlines, key=itemgetter(0))
    limit = asyncio.timeout_at(at)
    try:
        async with limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise GenerationTimeout(clock.name, clock.seconds) from None


class _Watch(AbstractContextManager[None]):
    __slots__ = ("_deadline", "_e2e", "_loop", "_stream", "_timer", "_token")

    def __init__(self, stream: TokenStream, token: Clock, e2e: Clock, deadline: float) -> None:
        self._stream = stream
        self._token = token
        self._e2e = e2e
        self._deadline = deadline
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        self._arm()

    def __exit__(self, *failure: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self) -> None:
        now = self._loop.time()
        if now >= self._deadline:
            self._expire(self._e2e)
            return
        due = self._stream.last_push + self._token.seconds
        if due <= now:
            if self._stream.idle:
                self._expire(self._token)
                return
            # The client is slow, not the engine: look again in a full period.
            due = now + self._token.seconds
        self._timer = self._loop.call_at(min(due, self._deadline), self._arm)

    def _expire(self, clock: Clock) -> None:
        self._stream.fail(GenerationTimeout(clock.name, clock.seconds))
