"""Clients that leave.

A departure is seen by reading. While reading is paused, because a client has
sent more requests ahead than are buffered, only the kernel knows.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Final

_TCP_INFO: Final = getattr(socket, "TCP_INFO", None)
_ESTABLISHED: Final = 1
"""`tcpi_state`, the first byte of the answer, while both sides are open."""


class ClientGone(ConnectionError):
    """The client left, or does not read in time. No other broken connection is meant."""


def has_left(transport: asyncio.BaseTransport) -> bool:
    """Whether the peer has closed or reset the connection. False where nobody can tell."""
    sock = transport.get_extra_info("socket")
    if sock is None or _TCP_INFO is None:
        return False
    try:
        return bool(sock.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 1)[0] != _ESTABLISHED)
    except OSError:
        # No TCP: a Unix socket.
        return False
