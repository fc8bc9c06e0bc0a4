"""The load generator: many streams, as little work per byte as Python allows.

`python -m tests.bench.load KIND PORT STREAMS TOKENS` prints one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from dataclasses import dataclass, field
from typing import Final, cast

_STAMP: Final = re.compile(rb"@(\d+\.\d+)@")
MODEL: Final = "bench"


def mindie_request(number: int, tokens: int, more: str = "") -> bytes:
    """A generate_stream request with details, as a benchmark client sends it."""
    parameters = {"max_new_tokens": tokens, "details": True, "do_sample": True, "seed": number + 1}
    body = {"text_input": f"Hello number {number} and{more}", "parameters": parameters}
    return _post(f"/v2/models/{MODEL}/generate_stream", body)


def openai_request(number: int, tokens: int) -> bytes:
    """The same request for vLLM's own completions route."""
    body = {
        "model": MODEL,
        "prompt": f"Hello number {number} and",
        "max_tokens": tokens,
        "stream": True,
        "seed": number + 1,
        "top_k": 1000,
    }
    return _post("/v1/completions", body)


REQUESTS: Final = {"mindie": mindie_request, "openai": openai_request}


def _post(path: str, body: object) -> bytes:
    data = json.dumps(body)
    head = [
        f"POST {path} HTTP/1.1",
        "Host: bench",
        "Content-Type: application/json",
        f"Content-Length: {len(data)}",
        "Connection: close",
    ]
    return "\r\n".join([*head, "", data]).encode()


@dataclass
class Result:
    """What one run saw. Times in seconds."""

    frames: int = 0
    octets: int = 0
    seconds: float = 0.0
    first: list[float] = field(default_factory=list)
    """From the source's stamp in a stream's first frame to its arrival here."""
    later: list[float] = field(default_factory=list)
    """The same for all other frames."""
    gaps: list[float] = field(default_factory=list)
    """Between two reads of one stream."""


class _Stream(asyncio.Protocol):
    def __init__(self, request: bytes, done: asyncio.Future[None], result: Result) -> None:
        self._request = request
        self._done = done
        self._result = result
        self._last: float | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.WriteTransport, transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        result = self._result
        result.octets += len(data)
        frames = data.count(b"data:")
        if not frames:
            return
        now = time.monotonic()
        result.frames += frames
        for stamp in _STAMP.findall(data):
            waits = result.first if self._last is None else result.later
            waits.append(now - float(stamp))
        if self._last is not None:
            result.gaps.append(now - self._last)
        self._last = now

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._done.done():
            self._done.set_result(None)


async def run(kind: str, port: int, streams: int, tokens: int) -> Result:
    """Open all streams at once and read each to its end."""
    loop = asyncio.get_running_loop()
    result = Result()
    begin = time.monotonic()
    ends = []
    for number in range(streams):
        done = loop.create_future()
        request = REQUESTS[kind](number, tokens)
        await loop.create_connection(
            lambda r=request, d=done: _Stream(r, d, result),  # type: ignore[misc]
            "127.0.0.1",
            port,
        )
        ends.append(done)
    await asyncio.gather(*ends)
    result.seconds = time.monotonic() - begin
    return result


def main() -> None:
    """Run as the arguments say and print the result as JSON."""
    kind, port, streams, tokens = sys.argv[1], *map(int, sys.argv[2:5])
    print(json.dumps(asyncio.run(run(kind, port, streams, tokens)).__dict__))


if __name__ == "__main__":
    main()
