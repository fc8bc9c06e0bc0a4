"""Looking up the names of media hosts: a bounded number at a time, and each name once.

A resolver may hang, for long, and cannot be interrupted: whoever asked has left by then,
but its thread is still there. So a name has one look-up at a time, however many ask for
it and on whichever port. A host whose name servers are silent holds one place then, and
the others are looked up beside it.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import ip_address
from typing import Any, Final

from proxy.media.turns import busy
from proxy.threads import in_thread
from translators.media_urls import Address

Resolve = Callable[[str, int], Awaitable[Sequence[Address]]]
"""(host, port) to addresses. Raises OSError when there are none."""

_AT_ONCE: Final = 16
"""Names that are looked up at the same time; those that nobody waits for any more count."""


class LookUps:
    """Addresses of names. Nothing is kept: who asks after an answer has come asks anew."""

    def __init__(self, resolve: Resolve, seconds: float) -> None:
        self._resolve = resolve
        self._seconds = seconds
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._running: dict[str, asyncio.Task[Sequence[Address]]] = {}

    async def addresses(self, host: str, port: int) -> Sequence[Address]:
        """All addresses of a host; none when it has none, or none in time.

        Waits for a place, and then for the answer, each for so many seconds at most.
        ServiceUnavailable when there is no place: of this host nothing is known then.
        """
        if host not in self._running:
            await self._begin(host, port)
        try:
            async with asyncio.timeout(self._seconds):
                # It goes on without those who leave.
                return await asyncio.shield(self._running[host])
        except TimeoutError:
            return ()

    async def _begin(self, host: str, port: int) -> None:
        try:
            async with asyncio.timeout(self._seconds):
                await self._places.acquire()
        except TimeoutError:
            raise busy() from None
        if host in self._running:
            # Another has begun meanwhile.
            self._places.release()
        else:
            self._running[host] = asyncio.create_task(self._look_up(host, port))

    async def _look_up(self, host: str, port: int) -> Sequence[Address]:
        try:
            return await self._resolve(host, port)
        except (OSError, UnicodeError):
            return ()
        finally:
            del self._running[host]
            self._places.release()


async def system_addresses(host: str, port: int) -> Sequence[Address]:
    """What the system's resolver says, in a thread. OSError when there are no addresses."""

    def look_up() -> list[Any]:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)

    answers = await in_thread(look_up)
    # An IPv6 answer may carry a zone, which makes it link-local.
    return list(dict.fromkeys(ip_address(str(answer[4][0])) for answer in answers))
