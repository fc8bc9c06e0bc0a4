"""Media for tests: files made from nothing, a host that serves them, and a watch on the system.

`watching` records every file that this process opens, every address it connects
to and every name it resolves, by Python's own audit events.
"""

from __future__ import annotations

import asyncio
import base64
import gc
import os
import struct
import sys
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from aiohttp import web

from translators.media_urls import Address

HOST = "media.test"


def png(width: int = 3, height: int = 2, *, filler: int = 0) -> bytes:
    """A PNG of one colour, with `filler` bytes of something else in it."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = zlib.compress((b"\0" + b"\xc8\x32\x32" * width) * height)
    chunks = [(b"IHDR", header), (b"teSt", bytes(filler)), (b"IDAT", rows), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks
        if data or name == b"IEND"
    )


def jpeg(width: int = 3, height: int = 2, *, marker: int = 0xC0, scans: int = 1) -> bytes:
    """The segments of a JPEG; its scans hold nothing."""
    app0 = b"\xff\xe0" + struct.pack(">H", 16) + b"JFIF\0\1\2\0\0\1\0\1\0\0"
    frame = b"\xff" + bytes([marker]) + struct.pack(">HBHHB", 11, 8, height, width, 1) + b"\1\x11\0"
    return b"\xff\xd8" + app0 + frame + b"\xff\xda\0\x08\1\1\0\0\x3f\0" * scans + b"\xff\xd9"


def wav(seconds: float = 1.0, rate: int = 8000) -> bytes:
    """Silence: 16 bit, mono."""
    data = bytes(2 * int(seconds * rate))
    fmt = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, rate, 2 * rate, 2, 16)
    body = b"WAVE" + fmt + struct.pack("<4sI", b"data", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(body)) + body


def flac(samples: int = 8000, rate: int = 8000) -> bytes:
    """The header of a FLAC."""
    packed = rate << 44 | 15 << 36 | samples
    info = struct.pack(">HH", 4096, 4096) + bytes(6) + packed.to_bytes(8, "big") + bytes(16)
    return b"fLaC" + b"\x80\0\0\x22" + info


def mp3(frames: int = 4, *, tag: bool = True) -> bytes:
    """Frames of 128 kbit/s at 44.1 kHz, each 417 bytes and 26 ms long."""
    head = b"ID3\4\0\0\0\0\0\x05" + bytes(5) if tag else b""
    return head + (b"\xff\xfb\x90\0" + bytes(413)) * frames


def mp4(brand: bytes = b"isom") -> bytes:
    return struct.pack(">I", 24) + b"ftyp" + brand + bytes(8) + bytes(40)


AVI = b"RIFF\x40\0\0\0AVI LIST" + bytes(40)
WMV = bytes.fromhex("3026b2758e66cf11a6d900aa0062ce6c") + bytes(40)
SAMPLES = {
    "png": png(),
    "jpg": jpeg(),
    "mp4": mp4(),
    "avi": AVI,
    "wmv": WMV,
    "mp3": mp3(),
    "wav": wav(),
    "flac": flac(),
}
FIELDS = {
    "png": "image_url",
    "jpg": "image_url",
    "mp4": "video_url",
    "avi": "video_url",
    "wmv": "video_url",
    "mp3": "audio_url",
    "wav": "audio_url",
    "flac": "audio_url",
}


def data_url(data: bytes, media_type: str = "image/png") -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


def image(value: object) -> dict[str, Any]:
    """An image part."""
    return {"type": "image_url", "image_url": value}


def text(value: object) -> dict[str, Any]:
    """A text part."""
    return {"type": "text", "text": value}


@dataclass
class Watch:
    """What the process did while it was watched."""

    opened: list[str] = field(default_factory=list)
    """Files opened to be read or written, as they were named."""
    looked_at: list[str] = field(default_factory=list)
    """Files opened with O_PATH: neither read, nor written, nor waited for."""
    connected: list[tuple[Any, ...]] = field(default_factory=list)
    resolved: list[str] = field(default_factory=list)

    def below(self, directory: Path) -> list[str]:
        """The files there that were opened, those without a name included."""
        return [name for name in self.opened if Path(name).is_relative_to(directory)]


_watches: list[Watch] = []


def _audit(event: str, args: tuple[Any, ...]) -> None:
    for watch in _watches:
        if event == "open":
            path, _, flags = args
            by_path = isinstance(flags, int) and flags & os.O_PATH
            (watch.looked_at if by_path else watch.opened).append(str(path))
        elif event == "socket.connect":
            watch.connected.append(args[1])
        elif event == "socket.getaddrinfo":
            watch.resolved.append(str(args[0]))


sys.addaudithook(_audit)


@contextmanager
def watching() -> Iterator[Watch]:
    """Record until the end of the block."""
    watch = Watch()
    _watches.append(watch)
    try:
        yield watch
    finally:
        _watches.remove(watch)


def open_files() -> list[str]:
    """The files that this process holds open, those without a name included."""
    gc.collect()
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        # The one that lists them is gone by now.
        with suppress(FileNotFoundError):
            found.append(str(descriptor.readlink()))
    # The event loop keeps a device or two for itself.
    return sorted(n for n in found if n.startswith("/") and not n.startswith(("/dev/", "/proc/")))


def names_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@dataclass
class FakeDns:
    """Answers in turn, the last one for ever. Records the questions."""

    answers: dict[str, list[Sequence[str]]]
    asked: list[str] = field(default_factory=list)

    async def __call__(self, host: str, port: int) -> Sequence[Address]:
        self.asked.append(host)
        answers = self.answers.get(host)
        if not answers:
            raise OSError("no such host")
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        return [ip_address(item) for item in answer]


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class MediaHost:
    """A web server on the loopback address."""

    port: int
    requests: list[web.Request] = field(default_factory=list)
    two_asked: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once there are two requests."""
    dropped: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a handler was cancelled because its client left."""

    def url(self, path: str = "/a.png", host: str = HOST) -> str:
        return f"http://{host}:{self.port}{path}"


@asynccontextmanager
async def media_host(handler: Handler) -> AsyncIterator[MediaHost]:
    """Serve every path by `handler`."""
    host = MediaHost(0)

    async def handle(request: web.Request) -> web.StreamResponse:
        host.requests.append(request)
        if len(host.requests) == 2:
            host.two_asked.set()
        try:
            return await handler(request)
        except (asyncio.CancelledError, ConnectionResetError):
            host.dropped.set()
            raise asyncio.CancelledError from None

    runner = web.AppRunner(
        _app(handle), handler_cancellation=True, access_log=None, shutdown_timeout=0.1
    )
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host.port = runner.addresses[0][1]
    try:
        yield host
    finally:
        await runner.cleanup()


def _app(handler: Handler) -> web.Application:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    return app


@asynccontextmanager
async def raw_host(answer: bytes) -> AsyncIterator[MediaHost]:
    """Send these bytes to whoever asks, and close."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield MediaHost(server.sockets[0].getsockname()[1])
    finally:
        server.close()


def serves(body: bytes, **headers: str) -> Handler:
    """A handler that answers with this body."""

    async def handle(request: web.Request) -> web.StreamResponse:
        return web.Response(body=body, headers=headers)

    return handle
