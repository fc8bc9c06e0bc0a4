"""Large heads, JSON bombs, and what error texts may tell: never a 500, a hang, or a secret."""

from __future__ import annotations

import asyncio
import re
import time

import pytest

from tests.support import (
    STREAM_PATH,
    connection,
    exchange,
    generate_body,
    get,
    get_bytes,
    post,
    request_bytes,
    serving,
)

pytestmark = pytest.mark.usefixtures("workers")

LIVE = "/v2/health/live"


def with_headers(*headers: str) -> bytes:
    return get_bytes(LIVE, headers=headers)


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (with_headers("X: " + "a" * 8000), 200),
        (with_headers("X: " + "a" * 9000), 400),
        (with_headers("X" * 9000 + ": a"), 400),
        (with_headers(*(f"X-{n}: a" for n in range(100))), 200),
        (with_headers(*(f"X-{n}: a" for n in range(1000))), 400),
        (with_headers(*(f"X-{n}: a" for n in range(500_000))), 400),
        (get_bytes("/" + "a" * 8000), 404),
        (get_bytes("/" + "a" * 9000), 400),
        (b"GET /" + b"a" * 5_000_000, 400),
        (get_bytes(LIVE)[:-2] + b"X: " + b"a" * 5_000_000, 400),
    ],
    ids=lambda value: value if isinstance(value, int) else f"{len(value)} bytes",
)
async def test_a_head_has_its_limits(raw: bytes, status: int) -> None:
    async with serving() as running:
        assert (await exchange(running.port, raw)).status == status
        assert (await get(running.port, LIVE)).status == 200


MILLION = 1_000_000
BOMBS = {
    "deep arrays": b"[" * 20 * MILLION,
    "deep objects": b'{"a":' * 6 * MILLION,
    "deep and closed": b'{"text_input":"a","x":' + b"[" * 4 * MILLION + b"]" * 4 * MILLION + b"}",
    "wide": b'{"text_input":' + b"[" + b"[]," * 2 * MILLION + b"[]]}",
    "many keys": b"{" + b",".join(b'"%d":0' % n for n in range(MILLION // 2)) + b"}",
    "one key often": b"{" + b'"a":0,' * 2 * MILLION + b'"a":0}',
    "digits": b'{"text_input":' + b"1" * 20 * MILLION + b"}",
    "exponents": b'{"text_input":"a","parameters":{"seed":1e999999999}}',
    "escapes": b'{"id":"' + b"\\u0000" * 5 * MILLION + b'"}',
    "quotes": b'{"id":"' + b'\\"' * 10 * MILLION,
    "spaces": b" " * 40 * MILLION,
}


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.alone
async def test_a_bomb_is_422_and_others_are_served_meanwhile(name: str) -> None:
    async with serving() as running, connection(running.port) as client:
        client.send(request_bytes(BOMBS[name]))
        answer = asyncio.create_task(client.response())
        slowest = 0.0
        while not answer.done():
            started = time.perf_counter()
            assert (await get(running.port, LIVE)).status == 200
            slowest = max(slowest, time.perf_counter() - started)
        assert (await answer).status == 422
        assert slowest < 5
        assert (await post(running.port, generate_body())).status == 200
        assert running.gateway.bodies.in_use == 0


TELLTALE = re.compile(
    r"Traceback|File \"|\.py\b|/usr|/opt|/home|/tmp|/root|0x[0-9a-f]{6}|object at"
)


@pytest.mark.parametrize(
    "raw",
    [
        request_bytes(b"{"),
        request_bytes(b"\xff"),
        request_bytes(b"[]"),
        request_bytes({"text_input": 5}),
        request_bytes({"text_input": "a", "parameters": {"top_k": "\x1b[31m"}}),
        request_bytes({"text_input": "a", "id": "../../etc/passwd"}),
        request_bytes({"text_input": [{"type": "image_url", "image_url": "/etc/passwd"}]}),
        request_bytes({"text_input": [{"type": "video_url", "video_url": "file:///etc/passwd"}]}),
        request_bytes(generate_body(), STREAM_PATH.replace("llama3-70b", "..%2f..%2fetc")),
        request_bytes({}, "/nowhere"),
        request_bytes({}, "/v2/models/llama3-70b/versions/1/generate_stream"),
        b"GARBAGE\r\n\r\n",
        request_bytes(b"a", headers=("Content-Encoding: gzip",)),
    ],
)
async def test_error_texts_tell_nothing_of_our_inside(raw: bytes) -> None:
    async with serving() as running:
        response = await exchange(running.port, raw)
    assert 400 <= response.status < 500
    error = response.json["error"]
    assert not TELLTALE.search(error), error
    assert error.isprintable()
    assert len(error) < 1000
