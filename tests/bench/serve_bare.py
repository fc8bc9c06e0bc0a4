"""The paced source without a gateway: `python -m tests.bench.serve_bare PORT`.

The same steps and stamps as `sources.SteppedEngine`, written to sockets as they
are, with no HTTP behind: what a client sees straight at the source.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import cast

import uvloop

from tests.bench.sources import PACE

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


class _Client(asyncio.Protocol):
    streams: dict[_Client, int]

    def __init__(self, streams: dict[_Client, int]) -> None:
        self._streams = streams
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.transport.write(_HEAD)
        if data.startswith(b"GET"):
            self.transport.close()
            return
        body = json.loads(data.partition(b"\r\n\r\n")[2])
        self._streams[self] = body["parameters"]["max_new_tokens"]

    def connection_lost(self, exc: Exception | None) -> None:
        self._streams.pop(self, None)


def _step(streams: dict[_Client, int]) -> None:
    for client, left in list(streams.items()):
        client.transport.write(b"data:@%.6f@\n\n" % time.monotonic())
        streams[client] = left - 1
        if left <= 1:
            del streams[client]
            client.transport.close()


async def _serve(port: int) -> None:
    streams: dict[_Client, int] = {}
    loop = asyncio.get_running_loop()
    await loop.create_server(lambda: _Client(streams), "127.0.0.1", port)
    due = time.monotonic()
    while True:
        due = max(due + PACE, time.monotonic())
        await asyncio.sleep(due - time.monotonic())
        _step(streams)


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
