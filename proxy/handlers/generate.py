"""POST /v2/models/{model}/generate: the whole answer at once (contract §7)."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from proxy.gateway import GATEWAY, Gateway
from proxy.generation import Generation, read_generation, running
from proxy.streaming import collect_answer
from translators.triton_generate import TritonGenerate

ROUTE: Final = "generate"


async def generate(request: web.Request) -> web.StreamResponse:
    """The whole answer as one JSON object."""
    gateway = request.app[GATEWAY]
    with gateway.metrics.account(ROUTE) as account:
        generation = await read_generation(gateway, request, account, whole=True)
        async with running(gateway, generation, account, whole=True) as stream:
            return await collect_answer(stream, _translator(gateway, generation), account)


def _translator(gateway: Gateway, generation: Generation) -> TritonGenerate:
    parameters = generation.parameters
    return TritonGenerate(
        request_id=generation.client_id,
        model_name=generation.model,
        details=parameters.details,
        max_tokens=generation.max_tokens,
        contract=gateway.contract,
        brace_escape=gateway.settings.brace_escape,
        stop_words=parameters.stop_words,
    )
