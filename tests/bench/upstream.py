"""A vLLM-like completions server that only writes chunks.

`python -m tests.bench.upstream PORT PORTION`. What the sidecar reads in P3: one
token per chunk, with token ids and usage as vLLM sends them when asked, as fast
as the reader takes them, PORTION chunks in one write.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any, Final

import uvloop
from aiohttp import web

from tests.bench.load import MODEL

_PORTION: Final = web.AppKey("portion", int)


def _chunk(number: int, tokens: int) -> bytes:
    last = number == tokens
    choice = {
        "index": 0,
        "text": " token",
        "logprobs": None,
        "finish_reason": "length" if last else None,
        "stop_reason": None,
        "token_ids": [5],
        "prompt_token_ids": [1, 2, 3] if number == 1 else None,
    }
    usage = {"prompt_tokens": 3, "total_tokens": 3 + number, "completion_tokens": number}
    body = {
        "id": "cmpl-bench",
        "object": "text_completion",
        "created": 1,
        "model": MODEL,
        "choices": [choice],
        "usage": usage,
    }
    return b"data: " + json.dumps(body, separators=(",", ":")).encode() + b"\n\n"


async def _completions(request: web.Request) -> web.StreamResponse:
    tokens = (await request.json())["max_tokens"]
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)
    portion = request.app[_PORTION]
    for first in range(1, tokens + 1, portion):
        numbers = range(first, min(first + portion, tokens + 1))
        await response.write(b"".join(_chunk(number, tokens) for number in numbers))
    await response.write(b"data: [DONE]\n\n")
    return response


async def _models(request: web.Request) -> web.Response:
    model = {
        "id": MODEL,
        "object": "model",
        "created": int(time.time()),
        "owned_by": "vllm",
        "root": MODEL,
        "parent": None,
        "max_model_len": 1_000_000,
    }
    return web.json_response({"object": "list", "data": [model]})


async def _tokenize(request: web.Request) -> web.Response:
    ids = [1, 2, 3]
    body: dict[str, Any] = {"count": 3, "max_model_len": 1_000_000, "tokens": ids}
    return web.json_response(body)


async def _healthy(request: web.Request) -> web.Response:
    return web.Response()


async def _version(request: web.Request) -> web.Response:
    return web.json_response({"version": "0.32.0"})


async def _serve(port: int, portion: int) -> None:
    app = web.Application()
    app[_PORTION] = portion
    app.router.add_post("/v1/completions", _completions)
    app.router.add_post("/tokenize", _tokenize)
    app.router.add_get("/v1/models", _models)
    app.router.add_get("/version", _version)
    app.router.add_get("/health", _healthy)
    await web._run_app(app, host="127.0.0.1", port=port, print=None, access_log=None)


if __name__ == "__main__":
    uvloop.run(_serve(*map(int, sys.argv[1:3])))
