"""Bad clients: `python -m tests.bench.neighbours PORT`, until it is ended.

4 MB prompts, bodies over the limit, and 64 clients that ask for much and never
read. They hold back a little, so that what is measured is the gateway and not
the fight for two cores.
"""

from __future__ import annotations

import asyncio
import json
import sys

from tests.bench.load import MODEL, mindie_request

_PAUSE = 0.25


async def _post(port: int, body: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /v2/models/{MODEL}/generate_stream HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode())
    try:
        writer.write(body)
        await reader.read()
    except ConnectionError:
        pass
    finally:
        writer.close()


async def _repeat(port: int, body: bytes) -> None:
    while True:
        await _post(port, body)
        await asyncio.sleep(_PAUSE)


async def _never_read(port: int, number: int) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    writer.write(mindie_request(number, 100_000))
    await asyncio.Event().wait()


async def _main(port: int) -> None:
    prompt = json.dumps({"text_input": "word " * 800_000, "parameters": {"max_new_tokens": 1}})
    await asyncio.gather(
        _repeat(port, prompt.encode()),
        _repeat(port, b"x" * (41 * 1024 * 1024)),
        *(_never_read(port, number) for number in range(64)),
    )


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1])))
