"""Clients with pictures: `python -m tests.bench.media_neighbours PORT FOLDER`, until it is ended.

64 requests are always under way, each with a picture of 5 MB: a third as base64,
a third by URL, a third as a local file. It serves the URLs itself.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from pathlib import Path
from typing import Final

from aiohttp import web

from tests.bench.load import MODEL
from tests.media_support import png

MEDIA_ROOT: Final = "BENCH_MEDIA_ROOT"
"""Names the folder to the gateway."""
_CLIENTS: Final = 64
_SIZE: Final = 5 * 1024 * 1024


def _body(url: str) -> bytes:
    parts = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": url}]
    return json.dumps({"text_input": parts, "parameters": {"max_new_tokens": 1}}).encode()


async def _repeat(port: int, body: bytes) -> None:
    head = f"POST /v2/models/{MODEL}/generate_stream HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    while True:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        try:
            await reader.read()
        except ConnectionError:
            await asyncio.sleep(0.1)
        finally:
            writer.close()


async def _serve(picture: bytes) -> int:
    async def handle(request: web.Request) -> web.Response:
        return web.Response(body=picture)

    app = web.Application()
    app.router.add_get("/picture.png", handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return int(runner.addresses[0][1])


async def _main(port: int, folder: Path) -> None:
    picture = png(filler=_SIZE)
    file = folder / "picture.png"
    file.write_bytes(picture)
    bodies = [
        _body(base64.b64encode(picture).decode()),
        _body(f"http://127.0.0.1:{await _serve(picture)}/picture.png"),
        _body(str(file)),
    ]
    await asyncio.gather(*(_repeat(port, bodies[n % len(bodies)]) for n in range(_CLIENTS)))


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]), Path(sys.argv[2])))
