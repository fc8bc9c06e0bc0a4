"""POST /generate_stream, /generate and /: the shape of text-generation-inference."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from proxy.frame_writer import FrameWriter
from proxy.gateway import GATEWAY, Gateway
from proxy.generation import running
from proxy.metrics import Account
from proxy.streaming import collect_answer, stream_frames
from proxy.tgi_generation import TgiGeneration, read_tgi_generation
from translators.errors import GatewayError
from translators.tgi import TgiAnswer, TgiStream, as_tgi

STREAM_ROUTE: Final = "tgi_generate_stream"
WHOLE_ROUTE: Final = "tgi_generate"
EITHER_ROUTE: Final = "tgi"


async def generate_stream(request: web.Request) -> web.StreamResponse:
    """TGI's frames: one per token, as server-sent events."""
    return await _answer(request, STREAM_ROUTE, stream=True)


async def generate(request: web.Request) -> web.StreamResponse:
    """TGI's whole answer as one JSON object."""
    return await _answer(request, WHOLE_ROUTE, stream=False)


async def either(request: web.Request) -> web.StreamResponse:
    """TGI's frames when the request's `stream` is true, else its answer in a list."""
    return await _answer(request, EITHER_ROUTE, stream=None)


async def _answer(request: web.Request, route: str, *, stream: bool | None) -> web.StreamResponse:
    gateway = request.app[GATEWAY]
    with gateway.metrics.account(route) as account:
        try:
            tgi = await read_tgi_generation(gateway, request, account, stream=stream)
            return await _run(gateway, request, tgi, account, in_a_list=stream is None)
        except GatewayError as error:
            raise as_tgi(error) from error


async def _run(
    gateway: Gateway, request: web.Request, tgi: TgiGeneration, account: Account, *, in_a_list: bool
) -> web.StreamResponse:
    settings = gateway.settings
    async with running(gateway, tgi.generation, account, whole=not tgi.stream) as tokens:
        if not tgi.stream:
            answer = TgiAnswer(tgi.asked, prefill=tgi.prefill, in_a_list=in_a_list)
            return await collect_answer(tokens, answer, account)
        frames = TgiStream(tgi.asked, data_space=settings.data_space)
        writer = FrameWriter(request, gateway.outbox, write_timeout=settings.write_timeout)
        return await stream_frames(tokens, frames, writer, account)
