"""From an HTTP request to a running generation: the checks, in the contract's order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from proxy.body_reader import read_body
from proxy.clocks import SERVER_E2E_TIMEOUT, Clock, token_clock, watched
from proxy.engines.base import EngineRequest
from proxy.engines.stream import TokenStream
from proxy.gateway import Gateway
from proxy.metrics import Account
from translators.body import parse_object
from translators.errors import GenerationError, InvalidInput
from translators.request import Parameters, read_envelope, read_parameters, usable_id
from translators.sampling import engine_priority, resolve_sampling

_DEFAULT_PRIORITY: Final = 5


@dataclass(frozen=True, slots=True)
class Generation:
    """A request that passed every check, ready for the engine."""

    client_id: str
    model: str
    parameters: Parameters
    engine_request: EngineRequest
    started: float
    """Loop time at which its handling began."""

    @property
    def max_tokens(self) -> int:
        return self.engine_request.sampling.max_tokens


async def read_generation(gateway: Gateway, request: web.Request) -> Generation:
    """Check everything in the order of contract §1; the first failure is raised.

    model → JSON → shutting down → id → text_input → token count → parameters.
    """
    settings, contract = gateway.settings, gateway.contract
    started = asyncio.get_running_loop().time()
    model = request.match_info["model"]
    gateway.check_model(model)
    body = await read_body(request, limit=settings.body_limit, timeout=settings.body_timeout)
    document = parse_object(body, contract)
    gateway.check_taking_work()
    envelope = read_envelope(
        document, contract, body_limit=settings.body_limit, dialect=settings.triton_dialect
    )
    prompt = await gateway.engine.tokenize(envelope.text)
    _check_prompt(len(prompt), gateway.prompt_limit)
    parameters = read_parameters(envelope, contract, is_recompute=_is_recompute(request.headers))
    return Generation(
        client_id=envelope.client_id
        or usable_id(request.headers.get("req-id"))
        or gateway.new_client_id(),
        model=model,
        parameters=parameters,
        engine_request=_engine_request(gateway, envelope.text, prompt, parameters),
        started=started,
    )


def _engine_request(
    gateway: Gateway, text: str, prompt: list[int], parameters: Parameters
) -> EngineRequest:
    info = gateway.info
    sampling = resolve_sampling(
        parameters,
        info.defaults,
        vocab_size=info.vocab_size,
        room=gateway.room(len(prompt)),
    )
    priority = parameters.priority
    if priority != _DEFAULT_PRIORITY and not info.priority_scheduling:
        gateway.note_ignored_priority()
        priority = _DEFAULT_PRIORITY
    return EngineRequest(
        request_id=gateway.new_request_id(),
        text=text,
        prompt=prompt,
        sampling=sampling,
        priority=engine_priority(priority),
    )


@asynccontextmanager
async def running(
    gateway: Gateway, generation: Generation, account: Account
) -> AsyncIterator[TokenStream]:
    """Admit the request, hand it to the engine and watch its clocks.

    Whatever ends the block, the engine's request is gone afterwards.
    """
    settings = gateway.settings
    token = token_clock(generation.parameters.timeout, settings.token_timeout)
    e2e = Clock(SERVER_E2E_TIMEOUT, settings.e2e_timeout)
    with gateway.admission.slot():
        gateway.check_taking_work()
        stream = await gateway.engine.submit(generation.engine_request)
        account.accepted(len(generation.engine_request.prompt))
        with (
            gateway.live.tracked(generation.client_id, stream),
            watched(stream, token, e2e, generation.started),
        ):
            yield stream


def _check_prompt(tokens: int, limit: int) -> None:
    if tokens == 0:
        raise InvalidInput('"text_input" gives no prompt token')
    if tokens > limit:
        raise GenerationError(f'"text_input" gives {tokens} prompt tokens, at most {limit} fit')


def _is_recompute(headers: Mapping[str, str]) -> bool:
    return headers.get("is-recompute", "").strip().lower() == "true"
