"""POST /v2/models/{model}/generate_stream (contract §1 to §5)."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from proxy.frame_writer import FrameWriter
from proxy.gateway import GATEWAY, Gateway
from proxy.generation import Generation, read_generation, running
from proxy.streaming import stream_frames
from translators.triton_stream import TritonStream

ROUTE: Final = "generate_stream"


async def generate_stream(request: web.Request) -> web.StreamResponse:
    """One frame per token, as server-sent events."""
    gateway = request.app[GATEWAY]
    with gateway.metrics.account(ROUTE) as account:
        generation = await read_generation(gateway, request, account)
        async with running(gateway, generation, account) as stream:
            frames = _translator(gateway, generation)
            writer = FrameWriter(
                request, gateway.outbox, write_timeout=gateway.settings.write_timeout
            )
            return await stream_frames(stream, frames, writer, account)


def _translator(gateway: Gateway, generation: Generation) -> TritonStream:
    parameters = generation.parameters
    return TritonStream(
        request_id=generation.client_id,
        model_name=generation.model,
        details=parameters.details,
        max_tokens=generation.max_tokens,
        contract=gateway.contract,
        style=gateway.settings.frame_style(accumulate=parameters.accumulate),
        stop_words=parameters.stop_words,
    )
