"""Do tokens flow? A hung engine answers its health check and nothing else.

The engine counts as stalled when it has had work for `timeout` seconds on end and
no token came of it anywhere. Readiness then says so; the process stays alive, for
an operator to look at. It is over with the next token: of a request that still
runs, or of a probe when none is left.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from proxy.live import LiveRequests

log = logging.getLogger(__name__)

_LONGEST_PERIOD: Final = 1.0
"""Seconds between looks, at most."""


class Watchdog:
    """Watches the live requests. `probe` tells whether a token comes within some seconds."""

    def __init__(
        self, live: LiveRequests, timeout: float, probe: Callable[[float], Awaitable[bool]]
    ) -> None:
        self.stalled = False
        self._live = live
        self._timeout = timeout
        self._probe = probe
        self._busy_since: float | None = None
        self._stalled_at = 0.0

    async def run(self) -> None:
        """Look for ever."""
        period = min(_LONGEST_PERIOD, self._timeout / 10)
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(period)
            self.look(loop.time())
            if self.stalled and not self._live.owed and await self._probe(self._timeout):
                self._busy_since = None
                self._recovered()

    def look(self, now: float) -> None:
        """Judge by what has come until `now`, loop time in seconds."""
        latest = self._live.last_token
        if self.stalled:
            if latest > self._stalled_at:
                self._recovered()
            return
        if not self._live.owed:
            self._busy_since = None
            return
        if self._busy_since is None:
            self._busy_since = now
        if now - max(latest, self._busy_since) >= self._timeout:
            self.stalled, self._stalled_at = True, now
            log.error("the engine has work and made no token for %g s", self._timeout)

    def _recovered(self) -> None:
        self.stalled = False
        log.warning("the engine makes tokens again")
