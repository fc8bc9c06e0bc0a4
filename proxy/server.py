"""Connections: serve, meet them with TLS, close."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from typing import Final

from aiohttp import web

from proxy.http_protocol import protocol_factory
from proxy.listeners import Bound, Listener, close_all

_KEEPALIVE: Final = 75.0
"""Seconds an idle connection is kept: more than what proxies in front keep theirs."""
_HANDSHAKE: Final = 10.0
"""Seconds for a client to finish its TLS handshake."""
CLOSE_TIMEOUT: Final = 5.0
"""Seconds that closing all connections may take at the end."""
_LAST_ANSWERS: Final = 0.5
"""Seconds that handlers get to end by themselves, and again once cancelled; within the above."""


class HttpServer:
    """One application on some sockets."""

    def __init__(self, app: web.Application) -> None:
        # A handler is cancelled as soon as its client leaves, also during prefill.
        self._runner = web.AppRunner(
            app, handler_cancellation=True, access_log=None, shutdown_timeout=_LAST_ANSWERS
        )
        self._tls: ssl.SSLContext | None = None
        self._bound: tuple[Bound, ...] = ()
        self._listeners: list[asyncio.Server] = []

    async def start(self, *bound: Bound) -> None:
        """Serve on bound sockets, over TLS if `use_tls` came before."""
        await self._runner.setup()
        self._bound = bound
        await self._listen()

    async def use_tls(self, context: ssl.SSLContext | None) -> None:
        """Meet new connections with `context` from now on; the open ones go on."""
        self._tls = context
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
        factory = protocol_factory(
            server, serves, access_log=None, auto_decompress=False, keepalive_timeout=_KEEPALIVE
        )
        loop = asyncio.get_running_loop()
        if self._tls is None:
            return await loop.create_server(factory, sock=sock)
        return await loop.create_server(
            factory, sock=sock, ssl=self._tls, ssl_handshake_timeout=_HANDSHAKE
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
