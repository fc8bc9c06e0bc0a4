"""What one vLLM server is and can do, asked once whenever it comes up.

The questions are real requests, so the answers are what requests will meet: a
one-token completion shows token ids, the priority, and the times that this
version tells. What is missing is logged, with what the gateway does instead.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from proxy.engines.remote.chunks import DONE, BadChunkError, Chunk, read_chunk
from proxy.engines.remote.client import (
    AnswerTooLargeError,
    Client,
    ConnectionFailedError,
    RefusedError,
    refusal,
)
from proxy.engines.remote.message import ChatMessage
from proxy.engines.remote.samples import sample
from proxy.engines.remote.sse import LineTooLongError, SseSplitter
from proxy.engines.vllm_words import HOTTEST_OF_NEW
from translators.contract import FLOAT32_MAX
from translators.errors import GatewayError, GenerationError, IncompleteGeneration
from translators.media_formats import MediaKind
from translators.sampling import ModelDefaults

log = logging.getLogger(__name__)

_WITHIN: Final = 60.0
"""Seconds for one question: a server under load makes its one token wait."""
SOON: Final = 0.5
"""Seconds for the text of some tokens: a stream waits for it."""
_NEUTRAL: Final = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "repetition_penalty": 1.0}
"""What vLLM samples with when neither the request nor the model says anything."""
_HOT: Final = {"temperature": 3.0}
_LINE: Final = 64 * 1024


class UnfitError(Exception):
    """The server answers, but cannot be used; the message is for the operator."""


@dataclass(frozen=True, slots=True)
class Profile:
    """What was found."""

    version: str
    names: tuple[str, ...]
    """Served model names, the main one first; adapters are not among them."""
    max_model_len: int
    root: str | None
    """The model's path or name where the server runs."""
    token_ids: bool
    """Chunks name their tokens; otherwise they are only counted."""
    priority: bool
    """The server takes a priority. Whether it schedules by it, no version tells."""
    hottest: float
    """The highest temperature that it takes."""
    queue_time: bool
    """The last event says how long the request waited (--enable-per-request-metrics)."""
    detokenize: bool
    """Merged chunks can be cut into their tokens."""
    defaults: ModelDefaults | None
    """The model's generation_config as the server applies it; None when it does not tell."""
    media: frozenset[MediaKind] = frozenset()
    """What it takes besides text."""


async def probe(client: Client, *, priority: bool) -> Profile:
    """Ask one server everything. `priority` False leaves priorities out.

    Raises UnfitError, and what `Client.ask` raises while the server is not up.
    """
    cards = await _models(client)
    prompt = await _tokens(client, cards[0]["id"])
    chunks, taken = await _one_token(client, cards[0]["id"], prompt, priority=priority)
    profile = Profile(
        version=await _version(client),
        names=tuple(card["id"] for card in cards),
        max_model_len=cards[0]["max_model_len"],
        root=_text(cards[0].get("root")),
        token_ids=any(chunk.ids for chunk in chunks),
        priority="priority" in taken,
        hottest=FLOAT32_MAX if "temperature" in taken else HOTTEST_OF_NEW,
        queue_time=any(chunk.queued is not None for chunk in chunks),
        detokenize=await _can_detokenize(client, cards[0]["id"], prompt),
        defaults=await _defaults(client, cards[0]["id"], prompt),
        media=frozenset([kind for kind in MediaKind if await _takes(client, cards[0]["id"], kind)]),
    )
    _report(client.name, profile, wants_priority=priority)
    return profile


async def _models(client: Client) -> list[dict[str, Any]]:
    """The cards of the base models. One server has one, under several names."""
    page = await _json(client, "GET", "/v1/models")
    cards = [card for card in _list(page, "data") if isinstance(card, dict)]
    base = [card for card in cards if card.get("parent") is None and _is_model(card)]
    if not base:
        raise UnfitError("/v1/models names no model with a max_model_len")
    return base


def _is_model(card: Mapping[str, Any]) -> bool:
    return type(card.get("id")) is str and type(card.get("max_model_len")) is int


async def _tokens(client: Client, model: str) -> list[int]:
    """A prompt of one or two tokens that this tokenizer certainly has."""
    try:
        page = await _json(client, "POST", "/tokenize", {"model": model, "prompt": "a"})
    except GatewayError:
        raise UnfitError("/tokenize does not answer, so prompts cannot be counted") from None
    tokens = [token for token in _list(page, "tokens") if type(token) is int]
    if not tokens:
        raise UnfitError("/tokenize gives no tokens")
    return tokens


async def _one_token(
    client: Client, model: str, prompt: list[int], *, priority: bool
) -> tuple[list[Chunk], Mapping[str, Any]]:
    """The chunks of a one-token completion, and what it was taken with of what not all take."""
    extras: list[dict[str, Any]] = [{**_HOT}, {}]
    if priority:
        extras = [{**one, "priority": -1} for one in extras] + extras
    for extra in extras[:-1]:
        try:
            return await _completion(client, model, prompt, **extra), extra
        except GenerationError:
            log.debug("%s refuses %s", client.name, ", ".join(extra))
    try:
        return await _completion(client, model, prompt, **extras[-1]), extras[-1]
    except GenerationError:
        raise UnfitError("/v1/completions refuses a plain request") from None


async def _completion(client: Client, model: str, prompt: list[int], **more: Any) -> list[Chunk]:
    document = {
        "model": model,
        "prompt": prompt,
        "max_tokens": 1,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        "return_token_ids": True,
        **more,
    }
    body = await client.ask("POST", "/v1/completions", document, within=_WITHIN)
    try:
        payloads = SseSplitter(_LINE).feed(body)
        chunks = [read_chunk(payload) for payload in payloads if payload != DONE]
    except (BadChunkError, LineTooLongError):
        raise UnfitError("/v1/completions does not stream as vLLM does") from None
    for chunk in chunks:
        if chunk.status is not None:
            raise refusal(chunk.status)
    return chunks


async def _version(client: Client) -> str:
    try:
        version = _text((await _json(client, "GET", "/version")).get("version"))
    except (GatewayError, UnfitError):
        version = None
    return version or "of unknown version"


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


async def _can_detokenize(client: Client, model: str, tokens: list[int]) -> bool:
    """False for a server that says no. One that only fails now is asked again later."""
    try:
        await detokenize(client, model, tokens)
    except RefusedError:
        return False
    except GatewayError:
        return True
    return True


async def detokenize(client: Client, model: str, tokens: list[int]) -> str:
    """The text of some tokens. Raises GatewayError for every failure."""
    document = {"model": model, "tokens": tokens}
    try:
        page = await _json(client, "POST", "/detokenize", document, within=SOON)
    except ConnectionFailedError as failure:
        raise failure.answer() from None
    except UnfitError:
        page = {}
    text = page.get("prompt")
    if not isinstance(text, str):
        raise IncompleteGeneration("the engine's answer makes no sense")
    return text


async def _defaults(client: Client, model: str, prompt: list[int]) -> ModelDefaults | None:
    """By rendering a request that says nothing (0.23; from 0.32 on with --enable-scale-out)."""
    document = {"model": model, "prompt": prompt}
    try:
        page = await _json(client, "POST", "/v1/completions/render", document)
    except (GatewayError, UnfitError):
        return None
    sampling = page.get("sampling_params")
    if not isinstance(sampling, dict):
        return None
    told = {key: sampling.get(key) for key in _NEUTRAL}
    own = {key: value for key, value in told.items() if value not in (None, _NEUTRAL[key])}
    # do_sample is not among what vLLM reads of a generation_config; a model that
    # brings values to sample with wants to be sampled.
    samples = bool(own.keys() - {"repetition_penalty"})
    return ModelDefaults.from_config({**own, "do_sample": samples or None})


async def _takes(client: Client, model: str, kind: MediaKind) -> bool:
    """Whether the model takes a medium of this kind: it counts the tokens of a small one."""
    message = ChatMessage([sample(kind)])
    try:
        await _json(client, "POST", "/tokenize", message.body({"model": model}))
    except (GatewayError, UnfitError):
        return False
    return True


async def _json(
    client: Client, method: str, path: str, document: Any = None, *, within: float = _WITHIN
) -> dict[str, Any]:
    """An answer that should be an object; of an array, its first item."""
    try:
        page = orjson.loads(await client.ask(method, path, document, within=within))
    except (orjson.JSONDecodeError, AnswerTooLargeError):
        raise UnfitError(f"{path} does not answer as vLLM does") from None
    if isinstance(page, list) and page:
        page = page[0]
    if not isinstance(page, dict):
        raise UnfitError(f"{path} does not answer as vLLM does")
    return page


def _list(page: Mapping[str, Any], key: str) -> list[Any]:
    value = page.get(key)
    return value if isinstance(value, list) else []


def _report(name: str, profile: Profile, *, wants_priority: bool) -> None:
    log.info(
        "%s: vLLM %s serves %s, context of %d tokens; it takes %s",
        name,
        profile.version,
        ", ".join(profile.names),
        profile.max_model_len,
        ", ".join(["text", *sorted(kind.value for kind in profile.media)]),
    )
    lacks = {
        "token ids per chunk: merged chunks are counted, /infer has no ids": profile.token_ids,
        "queue time per request (--enable-per-request-metrics): the first frame has the mean "
        "of the server's metrics": profile.queue_time,
        "/detokenize: a merged chunk's text comes with its last token": profile.detokenize,
        "a generation_config: what a client leaves out is left to the server": profile.defaults
        is not None,
        "priorities: all requests are equal": profile.priority or not wants_priority,
    }
    for what, there in lacks.items():
        if not there:
            log.info("%s does not offer %s", name, what)
