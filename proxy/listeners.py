"""Where the gateway listens: one address for everything, or more for some of its routes."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final, NamedTuple

from proxy.settings import Settings

BACKLOG: Final = 4096
"""Connections that the kernel keeps until they are accepted; beyond it they wait for seconds."""
_UNSENT: Final = 64 * 1024
"""Bytes that the kernel may hold of a connection without sending them."""


class Listener(Enum):
    """Routes that can have an address of their own. By default one serves all."""

    SERVICE = "service"
    MANAGEMENT = "management"
    METRICS = "metrics"


EVERYTHING: Final = frozenset(Listener)


class Address(NamedTuple):
    """Where to listen, and for what."""

    host: str
    port: int
    serves: frozenset[Listener]


class Bound(NamedTuple):
    """A listening socket, and the routes it is for."""

    socket: socket.socket
    serves: frozenset[Listener] = EVERYTHING

    @property
    def port(self) -> int:
        return int(self.socket.getsockname()[1])


def addresses(settings: Settings) -> list[Address]:
    """The main address first. What has none of its own, or the same one, shares it."""
    wanted = {
        Listener.SERVICE: (settings.host, settings.port),
        Listener.MANAGEMENT: (settings.management_host, settings.management_port),
        Listener.METRICS: (settings.metrics_host, settings.metrics_port),
    }
    found: list[Address] = []
    for listener, (host, port) in wanted.items():
        own = (host or settings.host, settings.port if port is None else port)
        shared = next((i for i, other in enumerate(found) if _same(other, own, port)), None)
        if shared is None:
            found.append(Address(*own, frozenset({listener})))
        else:
            found[shared] = found[shared]._replace(serves=found[shared].serves | {listener})
    return found


def _same(other: Address, own: tuple[str, int], port: int | None) -> bool:
    # Port 0 is a free one, each time another; a port that was not set is the main one.
    return own == (other.host, other.port) and port != 0


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. Raises OSError when the address is taken or wrong."""
    sock = _bound(host, port, shared=False)
    sock.listen(BACKLOG)
    return sock


def bind_shared(host: str, port: int, count: int) -> list[socket.socket]:
    """Several listening sockets on one address; the kernel spreads connections over them."""
    # A stranger who shares its port would share ours: first it must be free altogether.
    _bound(host, port, shared=False).close()
    found: list[socket.socket] = []
    try:
        for _ in range(count):
            found.append(_bound(host, port, shared=True))
            port = found[0].getsockname()[1]
            found[-1].listen(BACKLOG)
    except OSError:
        for sock in found:
            sock.close()
        raise
    return found


def _bound(host: str, port: int, *, shared: bool) -> socket.socket:
    family, kind, proto, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    sock = socket.socket(family, kind, proto)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        _feel_the_client(sock)
        sock.bind(address)
    except OSError:
        sock.close()
        raise
    sock.setblocking(False)
    return sock


def _feel_the_client(sock: socket.socket) -> None:
    """Keep little unsent in the kernel, for each connection of a listening socket.

    By default it holds megabytes, and lets us write again when a third is gone: a
    client that reads steadily but slowly would look as if it did not read at all.
    """
    option = getattr(socket, "TCP_NOTSENT_LOWAT", None)
    if option is not None:
        sock.setsockopt(socket.IPPROTO_TCP, option, _UNSENT)


def bind_all(settings: Settings) -> list[Bound]:
    """Bind every address, or none: raises OSError with the address that is taken or wrong."""
    return _bind_each(settings, lambda host, port: [bind(host, port)])[0]


def bind_for_workers(settings: Settings) -> list[list[Bound]]:
    """The same for each of the workers, on the same addresses."""
    return _bind_each(settings, lambda host, port: bind_shared(host, port, settings.workers))


def _bind_each(
    settings: Settings, bind_one: Callable[[str, int], list[socket.socket]]
) -> list[list[Bound]]:
    """What `bind_one` makes of each address, regrouped: one list for each socket that it makes."""
    rows: list[list[Bound]] = []
    for host, port, serves in addresses(settings):
        try:
            rows.append([Bound(sock, serves) for sock in bind_one(host, port)])
        except OSError as error:
            for row in rows:
                close_all(row)
            raise OSError(f"cannot listen on {host}:{port}: {error.strerror}") from None
    return [list(column) for column in zip(*rows, strict=True)]


def close_all(bound: Sequence[Bound]) -> None:
    """Close the sockets."""
    for each in bound:
        each.socket.close()
