"""From an HTTP request to a running generation: the checks, in the contract's order."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from aiohttp import web

from proxy.admission import Place, Preparation
from proxy.body_reader import read_body
from proxy.clocks import (
    CLIENT_TIMEOUT,
    SERVER_E2E_TIMEOUT,
    SERVER_TOKEN_TIMEOUT,
    Clock,
    in_time,
    shorter,
    watched,
)
from proxy.engines.base import EngineRequest, Prompt
from proxy.engines.stream import TokenStream, stopped_stream
from proxy.gateway import Gateway
from proxy.handover import Handover
from proxy.metrics import Account
from proxy.request_log import ACCOUNT, TRACE
from proxy.settings import Settings
from translators.body import parse_object
from translators.errors import GatewayError, GenerationError, InvalidInput
from translators.media import check_texts
from translators.request import (
    Envelope,
    Parameters,
    read_envelope,
    read_parameters,
    usable_id,
)
from translators.sampling import engine_priority, resolve_sampling
from translators.triton_infer import JSON_LENGTH_HEADER, InferRequest, read_infer, split_body

_DEFAULT_PRIORITY: Final = 5
_INLINE_BODY: Final = 1024 * 1024
"""Bytes of a body up to which it is parsed on the loop; a larger one in a thread."""


@dataclass(frozen=True, slots=True)
class Generation:
    """A request that passed every check, ready for the engine."""

    client_id: str
    model: str
    parameters: Parameters
    engine_request: EngineRequest
    started: float
    """Loop time at which its handling began."""
    stopped: bool = False
    """Whether it was stopped before there was a prompt: the engine must not see it."""

    @property
    def max_tokens(self) -> int:
        return self.engine_request.sampling.max_tokens


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request whose model is served and whose body is here, not yet looked at."""

    model: str
    headers: Mapping[str, str]
    started: float
    """Loop time at which its handling began."""
    received: float
    """Loop time at which all of it was here."""


async def receive(
    gateway: Gateway, request: web.Request, model: str, account: Account | None = None
) -> tuple[Arrival, bytes]:
    """Check the model, then take the body in. Raises what `read_body` raises.

    `account` is that of a generation: its handling begins once the model is known.
    """
    settings = gateway.settings
    started = asyncio.get_running_loop().time()
    if account is not None:
        request[ACCOUNT] = account
        account.trace = request.get(TRACE, {})
    gateway.check_model(model)
    if account is not None:
        account.began()
    body = await read_body(request, limit=settings.body_limit, timeout=settings.body_timeout)
    received = asyncio.get_running_loop().time()
    return Arrival(model, request.headers, started, received), body


async def parse(gateway: Gateway, body: bytes) -> dict[str, Any]:
    """The JSON object in `body`. A large one, which may take seconds, does not hold the loop."""
    if len(body) <= _INLINE_BODY:
        return parse_object(body, gateway.contract)
    # One at a time: parsing holds the interpreter, and several would pass it on to each other.
    async with gateway.parsing:
        return await asyncio.to_thread(parse_object, body, gateway.contract)


async def parse_work(gateway: Gateway, body: bytes) -> dict[str, Any]:
    """The same, if work is taken at all: in this order (contract §1)."""
    document = await parse(gateway, body)
    gateway.check_taking_work()
    return document


async def read_generation(
    gateway: Gateway, request: web.Request, account: Account, *, whole: bool = False
) -> Generation:
    """Check everything in the order of contract §1; the first failure is raised.

    model → JSON → shutting down → id → text_input → media → token count → parameters.
    `whole` is for an answer in one piece, as in `running`.
    """
    settings = gateway.settings
    arrival, body = await receive(gateway, request, request.match_info["model"], account)
    envelope = read_envelope(
        await parse_work(gateway, body),
        gateway.contract,
        body_limit=settings.body_limit,
        dialect=settings.triton_dialect,
    )
    # Media may take long, and the body may be large.
    del body
    parameters = _parameters(gateway, arrival, envelope)
    if gateway.admission.full and isinstance(parameters, GatewayError):
        # It would be refused in any case; its fault says more than the lack of room.
        raise parameters
    own, timeout = own_id(envelope.client_id, arrival.headers), _timeout(parameters)
    prompt = Prompt([])
    async with preparing(gateway, arrival, own, timeout, whole=whole) as preparation:
        prompt = await _prompt(gateway, envelope)
    if not preparation.stopped:
        check_prompt("text_input", len(prompt.ids), gateway.prompt_limit)
    generation = _generation(gateway, arrival, envelope, prompt, parameters)
    return replace(generation, stopped=preparation.stopped)


@asynccontextmanager
async def preparing(
    gateway: Gateway, arrival: Arrival, own: str | None, timeout: float, *, whole: bool
) -> AsyncIterator[Preparation]:
    """Admit a request and watch its clocks while its prompt is made, media and all.

    By `own`, its client's id for it, it can be stopped, which ends the block early.
    """
    token, e2e = _clocks(gateway.settings, timeout, whole=whole)
    with gateway.admission.preparation(own) as preparation:
        async with in_time(token, e2e, arrival.received, arrival.started):
            yield preparation


def _parameters(
    gateway: Gateway, arrival: Arrival, envelope: Envelope
) -> Parameters | GatewayError:
    """Read early for the timeout in them; what is wrong with them is said after the prompt."""
    recompute = _is_recompute(arrival.headers)
    try:
        return read_parameters(envelope, gateway.contract, is_recompute=recompute)
    except GatewayError as error:
        return error


def _timeout(parameters: Parameters | GatewayError) -> float:
    return math.inf if isinstance(parameters, GatewayError) else parameters.timeout


async def read_token_generation(
    gateway: Gateway, request: web.Request, account: Account
) -> tuple[Generation, InferRequest]:
    """The same for a prompt of token ids (contract §7, infer)."""
    arrival, body = await receive(gateway, request, request.match_info["model"], account)
    text, binary = split_body(body, arrival.headers.get(JSON_LENGTH_HEADER))
    infer = read_infer(
        await parse_work(gateway, text),
        binary,
        vocab_size=gateway.info.vocab_size,
        prompt_limit=gateway.prompt_limit,
        dialect=gateway.settings.triton_dialect,
    )
    parameters = _parameters(gateway, arrival, infer.envelope)
    return _generation(gateway, arrival, infer.envelope, Prompt(infer.prompt), parameters), infer


def _generation(
    gateway: Gateway,
    arrival: Arrival,
    envelope: Envelope,
    prompt: Prompt,
    parameters: Parameters | GatewayError,
) -> Generation:
    if isinstance(parameters, GatewayError):
        raise parameters
    return Generation(
        client_id=client_id(gateway, envelope.client_id, arrival.headers),
        model=arrival.model,
        parameters=parameters,
        engine_request=engine_request(gateway, envelope.text, prompt, parameters),
        started=arrival.started,
    )


def client_id(gateway: Gateway, own: str | None, headers: Mapping[str, str]) -> str:
    """The id that the client knows its request by (contract §2)."""
    return own_id(own, headers) or gateway.new_client_id()


def own_id(own: str | None, headers: Mapping[str, str]) -> str | None:
    """The same, where the client has given it: in the body or in a header."""
    return own or usable_id(headers.get("req-id"))


async def _prompt(gateway: Gateway, envelope: Envelope) -> Prompt:
    if not envelope.parts:
        return Prompt(await gateway.engine.tokenize(envelope.text))
    check_texts(envelope.parts, gateway.info.placeholders)
    async with gateway.media.fetched(envelope.parts, gateway.info.media) as parts:
        return await gateway.engine.prepare(parts)


def engine_request(
    gateway: Gateway, text: str, prompt: Prompt, parameters: Parameters
) -> EngineRequest:
    """What the engine gets, from checked values."""
    info = gateway.info
    sampling = resolve_sampling(
        parameters,
        info.defaults,
        vocab_size=info.vocab_size,
        room=gateway.room(len(prompt.ids)),
    )
    priority = parameters.priority
    if priority != _DEFAULT_PRIORITY and not info.priority_scheduling:
        gateway.note_ignored_priority()
        priority = _DEFAULT_PRIORITY
    return EngineRequest(
        request_id=gateway.new_request_id(),
        text=text,
        prompt=prompt.ids,
        sampling=sampling,
        priority=engine_priority(priority),
        payload=prompt.payload,
    )


@asynccontextmanager
async def running(
    gateway: Gateway, generation: Generation, account: Account, *, whole: bool = False
) -> AsyncIterator[TokenStream]:
    """Admit the request, hand it to the engine and watch its clocks.

    With `whole` the answer goes out as one piece, and the client's timeout is
    for all of it. Whatever ends the block, the engine's request is gone afterwards.
    """
    token, e2e = _clocks(gateway.settings, generation.parameters.timeout, whole=whole)
    account.checked(generation.client_id, generation.engine_request.request_id, generation.model)
    if generation.stopped:
        yield stopped_stream()
        return
    with gateway.admission.place(generation.engine_request.priority) as place:
        queued = asyncio.get_running_loop().time()
        async with in_time(token, e2e, queued, generation.started):
            stream = await _submitted(gateway, generation, place, account)
        if stream is None:
            yield stopped_stream()
            return
        if stream.idle:
            # The first token is awaited since then, wherever the request waited.
            stream.last_push = queued
        with (
            gateway.live.tracked(generation.client_id, stream),
            watched(stream, token, e2e, generation.started),
        ):
            await stream.accepted()
            account.accepted(len(generation.engine_request.prompt))
            if account.observer is not None:
                stream.observe(account.observer)
            try:
                yield stream
            finally:
                account.ended_by(stream.finish)


def _clocks(settings: Settings, timeout: float, *, whole: bool) -> tuple[Clock, Clock]:
    """The clock of the next token and that of the whole request (contract §5)."""
    token = Clock(SERVER_TOKEN_TIMEOUT, settings.token_timeout)
    e2e = Clock(SERVER_E2E_TIMEOUT, settings.e2e_timeout)
    client = Clock(CLIENT_TIMEOUT, timeout)
    return (token, shorter(client, e2e)) if whole else (shorter(client, token), e2e)


async def _submitted(
    gateway: Gateway, generation: Generation, place: Place, account: Account
) -> TokenStream | None:
    """Hand the request over as soon as it is its turn; None when it was stopped before."""
    # Not the loop's time, which uvloop tells in whole milliseconds.
    began = time.monotonic()
    if not place.running:
        with gateway.live.tracked(generation.client_id, place):
            if not await place.turn():
                return None
    account.queued = time.monotonic() - began
    gateway.check_taking_work()
    request = generation.engine_request
    account.handed_over = True
    handover = Handover()
    with gateway.live.tracked(generation.client_id, handover):
        return await handover.stream(gateway.engine.submit(replace(request, trace=account.trace)))


def check_prompt(field: str, tokens: int, limit: int) -> None:
    """InvalidInput for no prompt token, GenerationError for more than `limit`."""
    if tokens == 0:
        raise InvalidInput(f'"{field}" gives no prompt token')
    if tokens > limit:
        raise GenerationError(f'"{field}" gives {tokens} prompt tokens, at most {limit} fit')


def _is_recompute(headers: Mapping[str, str]) -> bool:
    return headers.get("is-recompute", "").strip().lower() == "true"
