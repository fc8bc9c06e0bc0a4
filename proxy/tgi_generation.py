"""The TGI shape: from an HTTP request to a running generation."""

from __future__ import annotations

from dataclasses import dataclass

from aiohttp import web

from proxy.engines.base import Prompt
from proxy.gateway import Gateway
from proxy.generation import (
    Generation,
    client_id,
    engine_request,
    own_id,
    parse_work,
    preparing,
    receive,
)
from proxy.metrics import Account
from translators.errors import InvalidInput
from translators.tgi import Asked
from translators.tgi_request import TgiParameters, TgiRequest, read_tgi, read_tgi_parameters


@dataclass(frozen=True, slots=True)
class TgiGeneration:
    """A request that passed every check, and what its answer has to hold."""

    generation: Generation
    stream: bool
    asked: Asked
    prefill: list[tuple[int, str]]
    """The prompt's tokens with their texts, where they are wanted."""


async def read_tgi_generation(
    gateway: Gateway, request: web.Request, account: Account, *, stream: bool | None
) -> TgiGeneration:
    """Check everything: JSON → shutting down → inputs → parameters → token count.

    The model is the main one: this shape names none. `stream` None leaves it to
    the request's own `stream`.
    """
    settings = gateway.settings
    model = gateway.info.names[0]
    arrival, body = await receive(gateway, request, model, account)
    document = await parse_work(gateway, body)
    tgi = read_tgi(document, gateway.contract, stream=stream, body_limit=settings.body_limit)
    parameters = read_tgi_parameters(tgi.parameters, gateway.contract, stream=tgi.stream)
    own, timeout = own_id(None, arrival.headers), parameters.common.timeout
    prompt: list[int] = []
    prefill: list[tuple[int, str]] = []
    async with preparing(gateway, arrival, own, timeout, whole=not tgi.stream) as preparation:
        prompt = await _prompt(gateway, tgi, parameters)
        prefill = await _prefill(gateway, prompt) if parameters.prefill else []
    # Whoever takes the text instead of the tokens would read what was cut off.
    text = "" if parameters.truncate else tgi.inputs
    generation = Generation(
        client_id=client_id(gateway, None, arrival.headers),
        model=model,
        parameters=parameters.common,
        engine_request=engine_request(gateway, text, Prompt(prompt), parameters.common),
        started=arrival.started,
        stopped=preparation.stopped,
    )
    return TgiGeneration(
        generation=generation,
        stream=tgi.stream,
        asked=_asked(gateway, tgi, parameters, prompt),
        prefill=prefill,
    )


async def _prompt(gateway: Gateway, tgi: TgiRequest, parameters: TgiParameters) -> list[int]:
    prompt = await gateway.engine.tokenize(tgi.inputs)
    if parameters.truncate is not None:
        prompt = prompt[-parameters.truncate :]
    if not 0 < len(prompt) <= gateway.prompt_limit:
        raise InvalidInput(
            f'"inputs" must give 1 to {gateway.prompt_limit} prompt tokens, got {len(prompt)}'
        )
    return prompt


async def _prefill(gateway: Gateway, prompt: list[int]) -> list[tuple[int, str]]:
    return list(zip(prompt, await gateway.engine.pieces(prompt), strict=True))


def _asked(
    gateway: Gateway, tgi: TgiRequest, parameters: TgiParameters, prompt: list[int]
) -> Asked:
    sampling = parameters.common.do_sample
    return Asked(
        details=parameters.details,
        stop=parameters.stop,
        special=gateway.info.special_token_ids,
        seed=parameters.common.seed if sampling else None,
        input_length=len(prompt),
        opening=tgi.inputs if parameters.return_full_text else "",
    )
