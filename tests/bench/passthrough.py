"""The plainest proxy: `python -m tests.bench.passthrough PORT UPSTREAM` copies bytes."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator

import aiohttp
import uvloop
from aiohttp import web

_SESSION = web.AppKey("session", aiohttp.ClientSession)
_UPSTREAM = web.AppKey("upstream", str)


async def _forward(request: web.Request) -> web.StreamResponse:
    url = request.app[_UPSTREAM] + request.path
    body = await request.read()
    async with request.app[_SESSION].request(request.method, url, data=body) as upstream:
        response = web.StreamResponse(status=upstream.status)
        await response.prepare(request)
        async for block in upstream.content.iter_any():
            await response.write(block)
        return response


async def _session(app: web.Application) -> AsyncIterator[None]:
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(
        timeout=timeout, connector=aiohttp.TCPConnector(limit=0)
    ) as session:
        app[_SESSION] = session
        yield


async def _serve(port: int, upstream: str) -> None:
    app = web.Application()
    app[_UPSTREAM] = upstream
    app.router.add_route("*", "/{rest:.*}", _forward)
    app.cleanup_ctx.append(_session)
    await web._run_app(app, host="127.0.0.1", port=port, print=None, access_log=None)


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1]), sys.argv[2]))
