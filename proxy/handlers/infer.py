"""POST /v2/models/{model}/infer: token ids in, token ids out (contract §7)."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from proxy.gateway import GATEWAY
from proxy.generation import read_token_generation, running
from proxy.streaming import collect_answer
from translators.triton_infer import TritonInfer

ROUTE: Final = "infer"


async def infer(request: web.Request) -> web.StreamResponse:
    """Token ids in, token ids out, as KServe tensors."""
    gateway = request.app[GATEWAY]
    with gateway.metrics.account(ROUTE) as account:
        generation, tensors = await read_token_generation(gateway, request, account)
        answer = TritonInfer(request_id=generation.client_id, output_name=tensors.output_name)
        async with running(gateway, generation, account, whole=True) as stream:
            return await collect_answer(stream, answer, account)
