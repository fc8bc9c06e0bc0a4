"""Sockets: bound before anything else, and all closed at the end."""

from __future__ import annotations

import asyncio
import socket

import pytest

from proxy.engines.stub import StubEngine, silent
from proxy.listeners import bind
from tests.support import (
    connections,
    eventually,
    generate_body,
    only_stream,
    request_bytes,
    serving,
)


def test_a_free_port_is_found() -> None:
    with bind("127.0.0.1", 0) as sock:
        assert sock.getsockname()[1] > 0


@pytest.mark.parametrize("host", ["::1", "localhost"])
def test_other_spellings_of_an_address(host: str) -> None:
    with bind(host, 0) as sock:
        assert sock.getsockname()[1] > 0


def test_a_port_that_is_taken() -> None:
    with bind("127.0.0.1", 0) as taken, pytest.raises(OSError, match="in use"):
        bind("127.0.0.1", taken.getsockname()[1])


@pytest.mark.parametrize(
    ("host", "reason"), [("192.0.2.1", "assign"), ("no.such.host.invalid", "not known|resolution")]
)
def test_an_address_that_is_not_ours(host: str, reason: str) -> None:
    with pytest.raises(OSError, match=reason):
        bind(host, 0)


async def test_the_end_closes_idle_connections_at_once() -> None:
    async with serving() as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        await eventually(connections)
        started = asyncio.get_running_loop().time()
    assert await reader.read() == b""
    assert asyncio.get_running_loop().time() - started < 0.5
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", running.port)).close()
    writer.transport.abort()


async def test_the_end_cancels_what_does_not_end_by_itself() -> None:
    engine = StubEngine(silent)
    async with serving(engine) as running:
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(request_bytes(generate_body()))
        await only_stream(engine)
    # The head, and no last chunk after it.
    assert (await reader.read()).partition(b"\r\n\r\n")[2] == b""
    writer.transport.abort()
    await eventually(lambda: running.outcomes == {"cancelled": 1})
