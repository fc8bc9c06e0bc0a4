"""A host that sends much to parse and little to look at: refused, and never long at a time."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import pytest
from aiohttp.client_proto import ResponseHandler

from proxy.media import paced
from proxy.media.paced import MostlyFraming, Pace, PacedConnector, PacedHandler
from tests.certificates import Authority
from tests.media_support import MediaHost, image, png, raw_host
from tests.proxy.media.test_desk import fetch, opened, refusal
from translators.media_formats import MIB

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
CONTINUE = b"HTTP/1.1 100\r\n\r\n"
EARLY_HINTS = b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\n\r\n"


def chunks(data: bytes, size: int) -> bytes:
    """The data in HTTP chunks of `size` bytes."""
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    return b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces)


FIRST = CHUNKED + chunks(png(), 100)
ENDLESS = {
    "informational answers": (b"", CONTINUE),
    "early hints": (b"", EARLY_HINTS),
    "chunks of a byte": (FIRST, b"1\r\nx\r\n"),
    "extensions of chunks": (FIRST, b"1;" + b"a" * 200 + b"\r\nx\r\n"),
    "one extension": (FIRST + b"1;", b"a"),
    "many extensions": (FIRST + b"1", b";a=b"),
    "trailers": (FIRST + b"0\r\n", b"a: b\r\n"),
    "headers": (OK, b"a: b\r\n"),
    "one header": (OK + b"a: ", b"b"),
    "lines": (b"", b"\r\n"),
}


@asynccontextmanager
async def endless_host(
    first: bytes, more: bytes, *, unasked: bool = False
) -> AsyncIterator[tuple[MediaHost, asyncio.Event]]:
    """Sends `first`, then `more` until it is hung up on, which sets the event."""
    block = more * (MIB // 4 // len(more))
    left = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            if not unasked:
                await reader.readuntil(b"\r\n\r\n")
            writer.write(first)
            while True:
                writer.write(block)
                await writer.drain()
        left.set()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield MediaHost(server.sockets[0].getsockname()[1]), left
    finally:
        server.close()


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes aiohttp was given to parse, each time."""
    sizes: list[int] = []
    parse = ResponseHandler.data_received

    def counting(self: ResponseHandler, data: bytes) -> None:
        sizes.append(len(data))
        parse(self, data)

    monkeypatch.setattr(ResponseHandler, "data_received", counting)
    return sizes


@pytest.mark.parametrize("unasked", [False, True], ids=["asked", "unasked"])
@pytest.mark.parametrize("what", ENDLESS)
async def test_what_is_no_medium_is_parsed_in_slices_and_soon_refused(
    tmp_path: Path, parsed: list[int], what: str, unasked: bool
) -> None:
    first, more = ENDLESS[what]
    async with (
        endless_host(first, more, unasked=unasked) as (host, left),
        opened(tmp_path) as made,
    ):
        found = await refusal(made, image(host.url()))
        assert found.startswith('"text_input[0]" ')
        assert "its host" in found
        await asyncio.wait_for(left.wait(), 10)
    assert max(parsed) <= paced._SLICE
    assert sum(parsed) <= paced._FRAMING + len(first) + 2 * paced._SLICE


@pytest.mark.parametrize("what", ["informational answers", "chunks of a byte", "one extension"])
async def test_the_refusal_names_the_rule(tmp_path: Path, what: str) -> None:
    async with endless_host(*ENDLESS[what]) as (host, _), opened(tmp_path) as made:
        assert await refusal(made, image(host.url())) == (
            '"text_input[0]" was sent by its host in too small pieces, or with too much around it'
        )


async def test_a_good_beginning_buys_one_larger_slice(tmp_path: Path, parsed: list[int]) -> None:
    first = CHUNKED + chunks(png(filler=MIB), 64 * 1024)
    async with endless_host(first, b"1\r\nx\r\n") as (host, _), opened(tmp_path) as made:
        assert "too small pieces" in await refusal(made, image(host.url()))
    # A sixteenth of what was good comes to what may be framing.
    assert sum(parsed) < len(first) + 2 * (MIB // 16 + paced._FRAMING)
    assert max(parsed) == paced._LARGE_SLICE


@pytest.mark.parametrize(
    "answer",
    [
        EARLY_HINTS * 2 + OK + b"Content-Length: %d\r\n\r\n" % len(png(filler=MIB)),
        CONTINUE + b"HTTP/1.0 200 OK\r\n\r\n",
        OK + b"X-A: " + b"a" * 8000 + b"\r\nX-B: " + b"b" * 8000 + b"\r\n\r\n",
    ],
)
async def test_a_host_with_more_to_say_is_heard(tmp_path: Path, answer: bytes) -> None:
    data = png(filler=MIB)
    async with raw_host(answer + data) as host, opened(tmp_path) as made:
        assert await fetch(made, image(host.url())) == [data]


@pytest.mark.parametrize("size", [100, 4096, 64 * 1024])
async def test_chunks_of_a_usual_size_are_taken_and_nothing_is_lost_at_the_end(
    tmp_path: Path, size: int
) -> None:
    data = png(filler=3 * MIB)
    answer = CHUNKED + chunks(data, size) + b"0\r\n\r\n"
    async with raw_host(answer) as host, opened(tmp_path) as made:
        assert await fetch(made, image(host.url())) == [data]


async def test_what_a_waiting_reader_leaves_with_the_parser_is_not_taken_for_framing() -> None:
    data = bytes(3_000_000)
    answer = CHUNKED + chunks(data, 128) + b"0\r\n\r\n"
    async with (
        raw_host(answer) as host,
        aiohttp.ClientSession(connector=PacedConnector(force_close=True)) as session,
        session.get(host.url(host="127.0.0.1")) as response,
    ):
        size = 0
        async for piece in response.content.iter_any():
            # As when they are written to a disk.
            await asyncio.sleep(0.002)
            size += len(piece)
    assert size == len(data)


async def test_an_answer_that_is_cut_off_is_refused_however_much_came(tmp_path: Path) -> None:
    answer = CHUNKED + chunks(png(filler=3 * MIB), 4096)
    async with raw_host(answer) as host, opened(tmp_path) as made:
        assert "could not be fetched" in await refusal(made, image(host.url()))


@pytest.mark.parametrize("more", [b"zz\r\nx", b"5\r\nhelloworld\r\n"])
async def test_a_chunk_that_is_none_is_refused_at_once_also_when_it_comes_late(
    tmp_path: Path, more: bytes
) -> None:
    first = CHUNKED + chunks(png(), 10)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(first + more)
        # Held open until it is hung up on.
        with suppress(ConnectionError):
            await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with opened(tmp_path) as made:
        url = MediaHost(server.sockets[0].getsockname()[1]).url()
        async with asyncio.timeout(5):
            assert "could not be fetched" in await refusal(made, image(url))
    server.close()


async def test_what_follows_the_body_is_not_parsed(tmp_path: Path, parsed: list[int]) -> None:
    data = png(filler=10_000)
    first = OK + b"Content-Length: %d\r\n\r\n" % len(data) + data
    async with (
        endless_host(first, b"HTTP/1.1 204 No\r\n\r\n") as (host, left),
        opened(tmp_path) as made,
    ):
        assert await fetch(made, image(host.url())) == [data]
        await asyncio.wait_for(left.wait(), 10)
    assert sum(parsed) == len(first)


BODIES = {
    "length": OK + b"Content-Length: %d\r\n\r\n" % len(png()) + png(),
    "length, after others": EARLY_HINTS + OK + b"Content-Length: %d\n\n" % len(png()) + png(),
    "chunked": CHUNKED + chunks(png(), 50) + b"0\r\n\r\n",
}


@pytest.mark.parametrize("size", [1, 2, 3, 5, 64, MIB])
@pytest.mark.parametrize("more", [b"x", b"\r\n", b"\0" * 5000, b"HTTP/1.1 404 No\r\n\r\n"])
@pytest.mark.parametrize("how", BODIES)
async def test_what_follows_the_body_changes_nothing_however_it_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, more: bytes, size: int
) -> None:
    receive = PacedHandler.data_received

    def in_pieces(self: PacedHandler, data: bytes) -> None:
        for at in range(0, max(len(data), 1), size):
            receive(self, data[at : at + size])

    monkeypatch.setattr(PacedHandler, "data_received", in_pieces)
    async with raw_host(BODIES[how] + more) as host, opened(tmp_path) as made:
        assert await fetch(made, image(host.url())) == [png()]


HEADS = {
    "length": OK + b"Content-Length: %d\r\n\r\n" % MIB,
    "until it closes": b"HTTP/1.0 200 OK\r\n\r\n",
    "chunked": CHUNKED + b"%x\r\n" % MIB,
}


@pytest.mark.parametrize("how", HEADS)
async def test_with_tls_the_end_comes_whole_when_the_reader_is_slower(
    tmp_path: Path, how: str
) -> None:
    """uvloop loses what came last if it may not hand it on when the host closes."""
    authority = Authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("localhost"))
    answer = HEADS[how] + bytes(MIB) + (b"\r\n0\r\n\r\n" if how == "chunked" else b"")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host = asyncio.create_task(asyncio.to_thread(answer_once, listener, context, answer))
        connector = PacedConnector(
            ssl=ssl.create_default_context(cafile=str(authority.file)), force_close=True
        )
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.get(f"https://127.0.0.1:{listener.getsockname()[1]}/") as response,
        ):
            await host
            # So that the loop sees the end before anybody reads.
            await asyncio.sleep(0.05)
            assert len(await response.content.read()) == MIB


def answer_once(listener: socket.socket, context: ssl.SSLContext, answer: bytes) -> None:
    """Over TLS, which it does not end before it closes the connection. Blocks."""
    connection, _ = listener.accept()
    with context.wrap_socket(connection, server_side=True) as wrapped:
        wrapped.recv(65536)
        wrapped.sendall(answer)


async def test_tls_that_carries_hardly_anything_is_refused(tmp_path: Path) -> None:
    """uvloop takes all records that have come apart before anything else has its turn."""
    authority = Authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("localhost"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host = asyncio.create_task(asyncio.to_thread(trickle, listener, context))
        connector = PacedConnector(ssl=ssl.create_default_context(cafile=str(authority.file)))
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.get(f"https://127.0.0.1:{listener.getsockname()[1]}/") as response,
        ):
            with pytest.raises(MostlyFraming):
                await response.content.read()
            assert response.content.total_bytes < 2 * paced._RECORDS // 20
        await asyncio.wait_for(host, 10)


async def test_with_tls_a_host_is_hung_up_on_at_once_whatever_it_still_sends(
    tmp_path: Path,
) -> None:
    """Else uvloop unpacks it for as long as an orderly end may take, 30 s."""
    authority = Authority(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("localhost"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host = asyncio.create_task(asyncio.to_thread(trickle, listener, context, bytes(1000)))
        connector = PacedConnector(ssl=ssl.create_default_context(cafile=str(authority.file)))
        async with aiohttp.ClientSession(connector=connector) as session:
            address = f"https://127.0.0.1:{listener.getsockname()[1]}/"
            async with session.get(address) as response:
                await response.content.readexactly(10_000)
            await asyncio.wait_for(host, 10)


def trickle(listener: socket.socket, context: ssl.SSLContext, data: bytes = b"x") -> None:
    """A body in records of these data, until it is hung up on. Blocks."""
    connection, _ = listener.accept()
    with context.wrap_socket(connection, server_side=True) as wrapped:
        wrapped.recv(65536)
        wrapped.sendall(OK + b"Content-Length: 1000000000\r\n\r\n")
        with suppress(OSError):
            while True:
                wrapped.sendall(data)


class Slow(PacedHandler):
    """Takes longer for a slice than there is in a turn of the loop."""

    def __init__(self, pace: Pace, slices: int, fed: list[PacedHandler]) -> None:
        super().__init__(pace, asyncio.get_running_loop())
        self.slices, self.fed = slices, fed

    def feed(self) -> bool:
        self.fed.append(self)
        time.sleep(2 * paced._MOMENT)
        self.slices -= 1
        return self.slices > 0


async def test_many_connections_together_parse_for_a_moment_in_each_turn_of_the_loop() -> None:
    pace, fed = Pace(asyncio.get_running_loop()), list[PacedHandler]()
    slow = [Slow(pace, 2, fed) for _ in range(3)]
    for handler in slow:
        pace.enlist(handler)
        pace.enlist(handler)
    for turn in range(6):
        await asyncio.sleep(0)
        assert len(fed) == turn + 1
    assert fed == slow + slow
    await asyncio.sleep(0)
    assert len(fed) == 6
