"""A request on its way into the engine: from its turn until there is a stream.

In process that is a moment. In front of a server it lasts until the server's answer
begins, and the request can be stopped and broken all that time, as before and after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from proxy.engines.stream import TokenStream
from translators.errors import GatewayError


class Handover:
    """Stands for the stream among the live requests until it is there."""

    __slots__ = ("_ended", "_error", "_limit")

    owed = False
    """The engine has not said yet that it takes the request."""
    last_token = 0.0

    def __init__(self) -> None:
        self._limit: asyncio.Timeout = asyncio.timeout(None)
        self._ended = False
        self._error: GatewayError | None = None

    async def stream(self, submitting: Awaitable[TokenStream]) -> TokenStream | None:
        """What the engine gives; None when the request was stopped before. Once only.

        Raises the error given to `fail`.
        """
        try:
            async with self._limit:
                stream = await submitting
        except TimeoutError:
            if not self._ended:
                raise
        else:
            if not self._ended:
                return stream
            # It came in the moment of its end.
            stream.close()
        if self._error is not None:
            raise self._error
        return None

    def stop(self) -> None:
        """End it normally (stopInfer)."""
        self._end()

    def fail(self, error: GatewayError) -> None:
        """End it with an error."""
        if not self._ended:
            self._error = error
        self._end()

    def close(self) -> None:
        """Nothing is left to free: who waits ends with its task."""

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self._limit.reschedule(asyncio.get_running_loop().time())
