"""Connections: serve, meet them with TLS, close."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
import ssl
from typing import Final, NamedTuple

from aiohttp import web

from proxy.gateway import GATEWAY
from proxy.http_protocol import protocol_factory
from proxy.listeners import BACKLOG, Bound, Listener, close_all

log = logging.getLogger(__name__)

_OTHER_FILES: Final = 1024
"""Open files beside the connections: libraries, devices, the engine's processes."""
_HANDSHAKE: Final = 10.0
"""Seconds for a client to finish its TLS handshake."""
CLOSE_TIMEOUT: Final = 5.0
"""Seconds that closing all connections may take at the end."""
_LAST_ANSWERS: Final = 0.5
"""Seconds that handlers get to end by themselves, and again once cancelled; within the above."""


class Tls(NamedTuple):
    """The contexts in force, None for plain HTTP.

    Only those who call the service show a certificate: kubelets and Prometheus,
    who come to listeners of their own, have none.
    """

    service: ssl.SSLContext | None = None
    others: ssl.SSLContext | None = None


def allow_open_files(connections: int) -> None:
    """Let the process hold that many connections, as far as the system permits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _OTHER_FILES
    if soft >= wanted:
        return
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, allowed), hard))
    if allowed < wanted:
        log.warning(
            "the system permits %d open files, %d connections want %d", allowed, connections, wanted
        )


class HttpServer:
    """One application on some sockets."""

    def __init__(self, app: web.Application) -> None:
        # A handler is cancelled as soon as its client leaves, also during prefill.
        self._runner = web.AppRunner(
            app, handler_cancellation=True, access_log=None, shutdown_timeout=_LAST_ANSWERS
        )
        self._gateway = app[GATEWAY]
        self._tls = Tls()
        self._bound: tuple[Bound, ...] = ()
        self._listeners: list[asyncio.Server] = []

    async def start(self, *bound: Bound) -> None:
        """Serve on bound sockets, over TLS if `use_tls` came before."""
        await self._runner.setup()
        self._bound = bound
        await self._listen()

    async def use_tls(self, tls: Tls) -> None:
        """Meet new connections with these contexts from now on; the open ones go on."""
        self._tls = tls
        if self._listeners:
            await self._listen()

    async def _listen(self) -> None:
        """Listen anew on the same sockets: none is closed in between, so no client is refused."""
        previous, self._listeners = self._listeners, []
        for sock, serves in self._bound:
            self._listeners.append(await self._listener(sock.dup(), serves))
        for listener in previous:
            listener.close()

    async def _listener(self, sock: socket.socket, serves: frozenset[Listener]) -> asyncio.Server:
        server = self._runner.server
        assert server is not None
        factory = protocol_factory(server, self._gateway, serves, auto_decompress=False)
        context = self._tls.service if Listener.SERVICE in serves else self._tls.others
        return await asyncio.get_running_loop().create_server(
            factory,
            sock=sock,
            backlog=BACKLOG,
            ssl=context,
            ssl_handshake_timeout=None if context is None else _HANDSHAKE,
        )

    def stop_listening(self) -> None:
        """Take no new connections; the open ones go on."""
        for listener in self._listeners:
            listener.close()
        close_all(self._bound)

    async def close(self) -> None:
        """Close the listeners and every connection, idle or not."""
        self.stop_listening()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await self._runner.cleanup()
