"""Sockets and connections: bind, serve, close."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from typing import Final

from aiohttp import web

from proxy.http_protocol import protocol_factory

_BACKLOG: Final = 1024
_KEEPALIVE: Final = 75.0
"""Seconds an idle connection is kept: more than what proxies in front keep theirs."""
_HANDSHAKE: Final = 10.0
"""Seconds for a client to finish its TLS handshake."""
CLOSE_TIMEOUT: Final = 5.0
"""Seconds that closing all connections may take at the end."""
_LAST_ANSWERS: Final = 0.5
"""Seconds that handlers get to end by themselves, and again once cancelled; within the above."""


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. Raises OSError when the address is taken or wrong."""
    family, kind, proto, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    sock = socket.socket(family, kind, proto)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(_BACKLOG)
    except OSError:
        sock.close()
        raise
    sock.setblocking(False)
    return sock


class HttpServer:
    """One application on some sockets."""

    def __init__(self, app: web.Application) -> None:
        # A handler is cancelled as soon as its client leaves, also during prefill.
        self._runner = web.AppRunner(
            app, handler_cancellation=True, access_log=None, shutdown_timeout=_LAST_ANSWERS
        )
        self._tls: ssl.SSLContext | None = None
        self._sockets: tuple[socket.socket, ...] = ()
        self._listeners: list[asyncio.Server] = []

    async def start(self, *sockets: socket.socket) -> None:
        """Serve on bound sockets, over TLS if `use_tls` came before."""
        await self._runner.setup()
        self._sockets = sockets
        await self._listen()

    async def use_tls(self, context: ssl.SSLContext | None) -> None:
        """Meet new connections with `context` from now on; the open ones go on."""
        self._tls = context
        if self._listeners:
            await self._listen()

    async def _listen(self) -> None:
        """Listen anew on the same sockets: none is closed in between, so no client is refused."""
        previous, self._listeners = self._listeners, []
        for sock in self._sockets:
            self._listeners.append(await self._listener(sock.dup()))
        for listener in previous:
            listener.close()

    async def _listener(self, sock: socket.socket) -> asyncio.Server:
        server = self._runner.server
        assert server is not None
        factory = protocol_factory(
            server, access_log=None, auto_decompress=False, keepalive_timeout=_KEEPALIVE
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
        for sock in self._sockets:
            sock.close()

    async def close(self) -> None:
        """Close the listeners and every connection, idle or not."""
        self.stop_listening()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await self._runner.cleanup()
