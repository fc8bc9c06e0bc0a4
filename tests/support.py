"""A running gateway for tests: real sockets on port 0, the stub engine behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import orjson

from proxy.app import build_app
from proxy.engines.base import Engine
from proxy.engines.stub import StubEngine
from proxy.gateway import Gateway
from proxy.server import HttpServer, bind
from proxy.settings import Settings

MODEL = "llama3-70b"
STREAM_PATH = f"/v2/models/{MODEL}/generate_stream"


@dataclass
class RunningGateway:
    """A gateway that serves, and the address to reach it at."""

    gateway: Gateway
    engine: Any
    port: int
    deaths: list[str] = field(default_factory=list)

    def url(self, path: str = STREAM_PATH) -> str:
        return f"http://127.0.0.1:{self.port}{path}"


@asynccontextmanager
async def serving(
    engine: Engine | None = None, *, started: bool = True, **settings: Any
) -> AsyncIterator[RunningGateway]:
    """Serve `engine` (the stub by default) on a free port.

    With `started=False` the engine is left in its start, as probes see it.
    """
    engine = StubEngine() if engine is None else engine

    async def factory() -> Engine:
        return engine

    gateway = Gateway(Settings(port=0, **settings), factory)
    server = HttpServer(build_app(gateway))
    sock = bind("127.0.0.1", 0)
    await server.start(sock)
    running = RunningGateway(gateway, engine, sock.getsockname()[1])
    if started:
        await gateway.start_engine(running.deaths.append)
    try:
        yield running
    finally:
        await server.close()
        await gateway.close_engine()


@dataclass
class RawResponse:
    """A response as it stood on the wire."""

    status: int
    headers: dict[str, str]
    chunks: list[bytes]
    complete: bool
    """Whether the final chunk, or all of Content-Length, arrived."""

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)

    @property
    def frames(self) -> list[Any]:
        """The JSON of each chunk, which must be one whole frame."""
        for chunk in self.chunks:
            assert chunk.startswith(b"data:"), chunk
            assert chunk.endswith(b"\n\n"), chunk
        return [orjson.loads(chunk[5:]) for chunk in self.chunks]


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


async def exchange(port: int, raw: bytes) -> RawResponse:
    """Send raw bytes on a new connection and read one response."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(raw)
        return await read_response(reader, head_only=raw.startswith(b"HEAD "))
    finally:
        writer.close()


async def post(port: int, body: bytes | dict[str, Any], path: str = STREAM_PATH) -> RawResponse:
    """POST on a new connection."""
    return await exchange(port, request_bytes(body, path))


async def read_response(reader: asyncio.StreamReader, *, head_only: bool = False) -> RawResponse:
    """One response, chunk by chunk, without any HTTP library between."""
    head = await reader.readuntil(b"\r\n\r\n")
    status_line, *lines = head.decode().split("\r\n")
    headers = {k.lower(): v.strip() for k, v in (line.split(":", 1) for line in lines if line)}
    status = int(status_line.split()[1])
    if head_only:
        return RawResponse(status, headers, [], True)
    if headers.get("transfer-encoding") == "chunked":
        chunks, complete = await _read_chunks(reader)
    elif "content-length" in headers:
        body = await reader.readexactly(int(headers["content-length"]))
        chunks, complete = [body], True
    else:
        chunks, complete = [await reader.read()], True
    return RawResponse(status, headers, chunks, complete)


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
