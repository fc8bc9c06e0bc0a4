"""Turns at the desk: so many requests at a time, and not all of them for one host.

A host that sends slowly holds the turns of its requests for long. Three quarters of
the turns, and of the places in the queue, are the most that it gets, so that media
from elsewhere still find one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from proxy.admission import RETRY_AFTER
from translators.errors import ServiceUnavailable

_WAITING_PER_TURN: Final = 32
"""Requests that may wait for each one that is served."""


def share_of(places: int) -> int:
    """How many of these places one host may have."""
    return max(places - max(places // 4, 1), 1)


class _Waiter(NamedTuple):
    hosts: frozenset[str]
    granted: asyncio.Future[None]


class Turns:
    """`most` requests at a time; the others wait in order, past those whose host has its share."""

    def __init__(self, most: int) -> None:
        self._free = most
        self._share = share_of(most)
        self._queue = _WAITING_PER_TURN * most
        self._held: Counter[str] = Counter()
        self._waiting: list[_Waiter] = []

    @property
    def waiting(self) -> int:
        """Requests that wait now."""
        return len(self._waiting)

    @asynccontextmanager
    async def turn(self, hosts: Collection[str], deadline: float) -> AsyncIterator[None]:
        """A turn for a request to these hosts, by `deadline` in the loop's time.

        ServiceUnavailable when the queue is full or too slow.
        """
        waiter = self._queued(frozenset(hosts))
        try:
            await _granted(waiter, deadline)
            yield
        finally:
            self._leave(waiter)

    def _queued(self, hosts: frozenset[str]) -> _Waiter:
        limit = share_of(self._queue)
        of_host = Counter(host for waiter in self._waiting for host in waiter.hosts)
        if len(self._waiting) >= self._queue or any(of_host[host] >= limit for host in hosts):
            raise busy()
        waiter = _Waiter(hosts, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        self._grant()
        return waiter

    def _grant(self) -> None:
        for waiter in list(self._waiting):
            if self._free == 0:
                return
            # One that was cancelled takes itself out.
            full = any(self._held[host] >= self._share for host in waiter.hosts)
            if full or waiter.granted.done():
                continue
            self._waiting.remove(waiter)
            self._free -= 1
            self._held.update(waiter.hosts)
            waiter.granted.set_result(None)

    def _leave(self, waiter: _Waiter) -> None:
        if waiter in self._waiting:
            self._waiting.remove(waiter)
            return
        self._free += 1
        self._held -= Counter(waiter.hosts)
        self._grant()


async def _granted(waiter: _Waiter, deadline: float) -> None:
    try:
        async with asyncio.timeout_at(deadline):
            await waiter.granted
    except TimeoutError:
        raise busy() from None


def busy() -> ServiceUnavailable:
    """What a request gets for which there is no turn in time."""
    return ServiceUnavailable("too many requests with media at once", retry_after=RETRY_AFTER)
