"""The process that has the engines when several workers share them.

It starts them, tells each worker where to meet them, and watches them. When one
dies the lines to the workers end, which is how they learn of it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from proxy.crew import ASK_STOP, RELOAD, STOP, heed_parent
from proxy.exit_codes import EXIT_ENGINE, EXIT_OK, EXIT_USAGE
from proxy.settings import SettingsError
from proxy.threads import in_thread

log = logging.getLogger(__name__)

_CLOSE_WITHIN: Final = 10.0
"""Seconds that the engines get to stop before their processes are killed."""


class Engines(Protocol):
    """Engines that run. All methods may block."""

    def wait(self) -> None:
        """Until one of their processes has ended."""

    def close(self) -> None:
        """Stop them."""


class EngineHost:
    """`start` blocks until the engines run; `lines` are those to the workers."""

    def __init__(
        self, start: Callable[[], Engines], parent: socket.socket, lines: Sequence[socket.socket]
    ) -> None:
        self._start = start
        self._parent = parent
        self._lines = lines
        self._stop = asyncio.Event()

    async def run(self, orphaned: Callable[[], None]) -> int:
        """Until the parent says stop, or an engine dies. Returns the exit code."""
        heed_parent(self._parent, {STOP: self._stop.set, RELOAD: lambda: None, b"": orphaned})
        starting = asyncio.create_task(in_thread(self._start))
        if not await self._sooner_than_stop(starting):
            return EXIT_OK
        try:
            engines = starting.result()
        except SettingsError as error:
            log.error("%s", error)
            return await self._failed(EXIT_USAGE)
        except Exception:
            log.exception("the engine did not start")
            return await self._failed(EXIT_ENGINE)
        died = await self._sooner_than_stop(asyncio.create_task(in_thread(engines.wait)))
        if died:
            log.error("the engine has died: its process ended")
            for line in self._lines:
                line.close()
        await self._close(engines)
        return EXIT_ENGINE if died else EXIT_OK

    async def _sooner_than_stop(self, task: asyncio.Task[object]) -> bool:
        stopping = asyncio.create_task(self._stop.wait())
        await asyncio.wait((task, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        return task.done() or not task.cancel()

    async def _failed(self, code: int) -> int:
        """Have all stopped in good order: no worker shall take this for an engine's death."""
        self._parent.send(ASK_STOP)
        await self._stop.wait()
        return code

    async def _close(self, engines: Engines) -> None:
        try:
            async with asyncio.timeout(_CLOSE_WITHIN):
                await in_thread(engines.close)
        except TimeoutError:
            log.warning("the engines do not stop: their processes are killed")
