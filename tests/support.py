"""A running gateway for tests: real sockets on port 0, the stub engine behind it."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import orjson

from proxy.app import build_app
from proxy.crew import Exchange, Siblings, Worker
from proxy.engines.base import Engine, EngineRequest
from proxy.engines.stream import TokenStream
from proxy.engines.stub import StubEngine
from proxy.gateway import Gateway
from proxy.http_protocol import HttpProtocol
from proxy.listeners import bind_all, bind_for_workers
from proxy.reload import Reloader
from proxy.security import put_in_force
from proxy.server import HttpServer
from proxy.settings import Settings
from translators.tokens import Finish, FinishReason, Token

MODEL: Final = "llama3-70b"
STREAM_PATH: Final = f"/v2/models/{MODEL}/generate_stream"
STOP_PATH: Final = f"/v2/models/{MODEL}/stopInfer"
WITHIN: Final = 45.0
"""Seconds after which a test gives up waiting: long, since a real engine may share its cores."""
WORKERS = 1
"""How many `serving` has, where a test does not say."""


@dataclass
class RunningGateway:
    """A gateway that serves, and the address to reach it at."""

    gateway: Gateway
    engine: Any
    port: int
    reloader: Reloader
    ports: list[int]
    """The main one first, then those of its own for management and metrics, in this order."""
    deaths: list[str] = field(default_factory=list)
    others: list[Gateway] = field(default_factory=list)
    """The workers beside `gateway`, which is the first one."""

    def url(self, path: str = STREAM_PATH) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    @property
    def gateways(self) -> list[Gateway]:
        """Every worker."""
        return [self.gateway, *self.others]

    def metric(self, name: str, **labels: str) -> float:
        """One figure of the gateway's own metrics, summed over workers and labels not given."""
        return sum(
            sample.value
            for gateway in self.gateways
            for family in gateway.metrics.registry.collect()
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    @property
    def outcomes(self) -> dict[str, int]:
        """How many requests ended how, without the outcomes that did not occur."""
        counts = {
            outcome: int(self.metric("mindie_gateway_requests_finished_total", outcome=outcome))
            for outcome in ("succeeded", "failed", "cancelled", "refused")
        }
        return {outcome: count for outcome, count in counts.items() if count}

    async def settled(self, **outcomes: int) -> None:
        """Wait for these outcomes; then the books must balance and nothing be held."""
        await eventually(lambda: self.outcomes == outcomes, lambda: self.outcomes)
        assert self.metric("mindie_gateway_requests_received_total") == sum(outcomes.values())
        assert self.metric("mindie_gateway_requests_in_flight") == 0
        for gateway in self.gateways:
            assert gateway.admission.in_use == 0
            assert len(gateway.live) == 0
        assert not self.engine.live


@asynccontextmanager
async def serving(
    engine: Engine | None = None, *others: Engine, started: bool = True, **settings: Any
) -> AsyncIterator[RunningGateway]:
    """Serve `engine` (the stub by default) on a free port, as one worker or as several.

    Each of `others` is for one worker more. Without them there are `WORKERS`, all on
    this engine. With `started=False` the engine is left in its start, as probes see it.
    """
    engine = StubEngine() if engine is None else engine
    engines = [engine, *(others or [engine] * (WORKERS - 1))]
    count = len(engines)
    chosen = Settings(port=0, workers=count, **settings)
    shares = [bind_all(chosen)] if count == 1 else bind_for_workers(chosen)
    exchange = None if count == 1 else Exchange.open(count)
    async with AsyncExitStack() as stack:
        members = [
            await stack.enter_async_context(_member(chosen, each, Worker(index, count), exchange))
            for index, each in enumerate(engines)
        ]
        for member, bound in zip(members, shares, strict=True):
            await member.server.start(*bound)
        ports = [bound.port for bound in shares[0]]
        gateway, *beside = [member.gateway for member in members]
        running = RunningGateway(gateway, engine, ports[0], members[0].reloader, ports)
        running.others = beside
        if started:
            for each in running.gateways:
                await each.start_engine(running.deaths.append)
        yield running


class _Member(NamedTuple):
    """One worker, or the only one."""

    gateway: Gateway
    server: HttpServer
    reloader: Reloader


@asynccontextmanager
async def _member(
    settings: Settings, engine: Engine, worker: Worker, exchange: Exchange | None
) -> AsyncIterator[_Member]:
    async def factory() -> Engine:
        return engine

    gateway = Gateway(settings, factory, worker)
    server = HttpServer(build_app(gateway))
    reloader = Reloader(lambda what: gateway.metrics.reload_failures.labels(what).inc())
    await put_in_force(settings, gateway.access, server, reloader)
    if exchange is not None:
        await gateway.join(Siblings(worker, exchange))
    try:
        yield _Member(gateway, server, reloader)
    finally:
        await server.close()
        if gateway.siblings is not None:
            gateway.siblings.close()
        await gateway.close_engine()


async def eventually(
    condition: Callable[[], Any],
    explain: Callable[[], Any] = lambda: "",
    *,
    within: float = WITHIN,
) -> None:
    """Wait until `condition()` holds, for what nobody announces by an event."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within
    while not condition():
        assert loop.time() < deadline, f"not within {within} s: {explain()}"
        await asyncio.sleep(0.002)


def token(
    text: str,
    number: int = 1,
    *,
    finish: FinishReason | None = None,
    latency: float = 0.0,
    waited: float = 0.0,
) -> Token:
    """A token as an engine hands it over."""
    end = None if finish is None else Finish(finish)
    return Token(number, text, latency, waited, 1, end)


def scripted(*tokens: Token) -> Callable[[EngineRequest], AsyncIterator[Token]]:
    """A script for the stub that hands over these tokens in one go, then waits for ever."""

    async def script(request: EngineRequest) -> AsyncIterator[Token]:
        for each in tokens:
            yield each
        if not tokens or tokens[-1].finish is None:
            await asyncio.Event().wait()

    return script


async def only_stream(engine: StubEngine) -> TokenStream:
    """The stream of the one request that the stub serves, once it has it."""
    await eventually(lambda: len(engine.live) == 1, lambda: f"{len(engine.live)} live requests")
    return next(iter(engine.live.values())).stream


def finish(
    engine: StubEngine, stream: TokenStream, text: str, reason: FinishReason = FinishReason.END
) -> None:
    """Hand over the last token of a request that a silent stub serves."""
    stream.push(token(text, finish=reason))
    (run,) = (run for run in engine.live.values() if run.stream is stream)
    run.task.cancel()


@dataclass
class RawResponse:
    """A response as it stood on the wire."""

    status: int
    headers: dict[str, str]
    chunks: list[bytes]
    complete: bool
    """Whether the final chunk, or all of Content-Length, arrived."""
    head: bytes = b""

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)

    @property
    def frames(self) -> list[Any]:
        """The JSON of each chunk, which must be one whole frame."""
        return [frame_json(chunk) for chunk in self.chunks]

    @property
    def texts(self) -> list[str]:
        return [frame["text_output"] for frame in self.frames]


def frame_json(chunk: bytes) -> Any:
    """The JSON of one frame, which `chunk` must hold and nothing else."""
    assert chunk.startswith(b"data:{"), chunk
    assert chunk.endswith(b"}\n\n"), chunk
    assert chunk.count(b"\n") == 2, chunk
    return orjson.loads(chunk[5:])


def request_bytes(
    body: bytes | dict[str, Any],
    path: str = STREAM_PATH,
    *,
    method: str = "POST",
    version: str = "1.1",
    headers: tuple[str, ...] = (),
) -> bytes:
    """A raw request; a dict is sent as JSON."""
    data = body if isinstance(body, bytes) else orjson.dumps(body)
    lines = [f"{method} {path} HTTP/{version}", "Host: test", f"Content-Length: {len(data)}"]
    return "\r\n".join([*lines, *headers, "", ""]).encode() + data


def get_bytes(path: str, *, method: str = "GET", headers: tuple[str, ...] = ()) -> bytes:
    """A raw request without a body."""
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: test", *headers, "", ""]).encode()


def generate_body(text: str = "one two", tokens: int = 3, **parameters: Any) -> dict[str, Any]:
    """A valid request body."""
    return {"text_input": text, "parameters": {"max_new_tokens": tokens, **parameters}}


class Connection:
    """One raw connection to the gateway: what is sent and read is exactly what is on the wire."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self._writer = writer

    def send(self, raw: bytes) -> None:
        self._writer.write(raw)

    async def drain(self) -> None:
        """Wait until the gateway has taken most of what was sent."""
        async with asyncio.timeout(WITHIN):
            await self._writer.drain()

    async def ask(self, raw: bytes) -> RawResponse:
        """Send a request and read its whole response."""
        self.send(raw)
        return await self.response(head_only=raw.startswith(b"HEAD "))

    async def response(self, *, head_only: bool = False) -> RawResponse:
        """Read one whole response."""
        async with asyncio.timeout(WITHIN):
            return await read_response(self.reader, head_only=head_only)

    async def head(self) -> RawResponse:
        """Read status and headers only."""
        async with asyncio.timeout(WITHIN):
            return await read_response(self.reader, head_only=True)

    async def response_body(self) -> RawResponse:
        """Read the chunked body of a response whose head is read."""
        async with asyncio.timeout(WITHIN):
            chunks, complete = await _read_chunks(self.reader)
        return RawResponse(200, {}, chunks, complete)

    async def chunk(self) -> bytes:
        """Read one chunk of a response whose head is read; b"" is the last one."""
        async with asyncio.timeout(WITHIN):
            size = int(await self.reader.readuntil(b"\r\n"), 16)
            return (await self.reader.readexactly(size + 2))[:-2]

    async def rest(self) -> bytes:
        """Everything until the gateway closes the connection."""
        async with asyncio.timeout(WITHIN):
            return await self.reader.read()

    async def half_close(self) -> None:
        """Send no more, but go on reading."""
        self._writer.write_eof()

    async def reset(self) -> None:
        """Leave as a killed client does: with a reset instead of an orderly end."""
        sock = self._writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    async def close(self) -> None:
        """Leave in an orderly way."""
        self._writer.close()


@asynccontextmanager
async def connection(
    port: int, *, receive_buffer: int | None = None, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Connection]:
    """A connection; a small `receive_buffer` (bytes) makes a client that stops reading felt."""
    sock = socket.socket()
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    # A reader that is not asked reads no more than its limit: it must not read for the test.
    name = "127.0.0.1" if tls else None
    reader, writer = await asyncio.open_connection(
        sock=sock, limit=2**16, ssl=tls, server_hostname=name
    )
    try:
        yield Connection(reader, writer)
    finally:
        writer.transport.abort()


def connections() -> list[HttpProtocol]:
    """The open connections as the gateway sees them."""
    return [
        each
        for each in gc.get_objects()
        if isinstance(each, HttpProtocol) and each.transport is not None
    ]


async def exchange(port: int, raw: bytes, *, tls: ssl.SSLContext | None = None) -> RawResponse:
    """Send raw bytes on a new connection and read one response."""
    async with connection(port, tls=tls) as client:
        return await client.ask(raw)


async def post(
    port: int,
    body: bytes | dict[str, Any],
    path: str = STREAM_PATH,
    *,
    headers: tuple[str, ...] = (),
) -> RawResponse:
    """POST on a new connection."""
    return await exchange(port, request_bytes(body, path, headers=headers))


async def get(port: int, path: str, *, method: str = "GET") -> RawResponse:
    """A request without a body on a new connection."""
    return await exchange(port, get_bytes(path, method=method))


async def read_response(reader: asyncio.StreamReader, *, head_only: bool = False) -> RawResponse:
    """One response, chunk by chunk, without any HTTP library between."""
    head = await reader.readuntil(b"\r\n\r\n")
    status_line, *lines = head.decode().split("\r\n")
    headers = {k.lower(): v.strip() for k, v in (line.split(":", 1) for line in lines if line)}
    status = int(status_line.split()[1])
    if head_only:
        return RawResponse(status, headers, [], True, head)
    if headers.get("transfer-encoding") == "chunked":
        chunks, complete = await _read_chunks(reader)
    elif "content-length" in headers:
        body = await reader.readexactly(int(headers["content-length"]))
        chunks, complete = [body], True
    else:
        chunks, complete = [await reader.read()], True
    return RawResponse(status, headers, chunks, complete, head)


async def _read_chunks(reader: asyncio.StreamReader) -> tuple[list[bytes], bool]:
    chunks: list[bytes] = []
    while True:
        try:
            size = int(await reader.readuntil(b"\r\n"), 16)
            chunk = await reader.readexactly(size + 2)
        except (asyncio.IncompleteReadError, ConnectionError):
            return chunks, False
        if size == 0:
            return chunks, True
        chunks.append(chunk[:-2])
