"""One or several vLLM servers as one engine."""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, TypeVar

import orjson

from proxy.engines.base import EngineRequest, Load, ModelInfo, Prompt, total
from proxy.engines.remote.client import (
    AnswerTooLargeError,
    Client,
    ConnectionFailedError,
    FailedError,
    RefusedError,
)
from proxy.engines.remote.gauges import Gauges
from proxy.engines.remote.message import ChatMessage, LargeBody
from proxy.engines.remote.openai import RemoteOpenAI
from proxy.engines.remote.probe import Profile
from proxy.engines.remote.request import chat, completion
from proxy.engines.remote.samples import sample
from proxy.engines.remote.stream import RemoteStream
from proxy.engines.remote.upstream import Upstream
from proxy.engines.stream import TokenStream
from proxy.media.content import Medium, PromptPart
from translators.errors import GatewayError, GenerationError, IncompleteGeneration
from translators.media import TextPart, check_no_text, named
from translators.media_formats import MAX_ITEMS
from translators.media_urls import MediaRefused
from translators.sampling import ModelDefaults

log = logging.getLogger(__name__)

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

ASSUMED_MAX_NUM_SEQS: Final = 256
"""Sequences of one server at once, which vLLM does not tell; its own smallest default."""
_UNKNOWN_VOCABULARY: Final = 2**31 - 1
"""No token id is refused here: the server knows its vocabulary and refuses them itself."""
_TRIES: Final = 3
_TOKENIZE_WITHIN: Final = 60.0
_PER_TOKEN: Final = 12
"""Bytes of one token id in JSON, generously."""
_HEAD: Final = 64 * 1024
_PLACEHOLDER: Final = re.compile(r"Found more '([^']{1,200})' placeholders")
"""How vLLM says that a text holds what stands for media."""


@dataclass(frozen=True, slots=True)
class UpstreamOptions:
    """How to reach the servers, and what they do not tell about themselves."""

    urls: tuple[str, ...]
    api_key: str | None = None
    connect_timeout: float = 5.0
    check_period: float = 1.0
    """Seconds between looks at a server's health and load."""
    max_num_seqs: int | None = None
    """Of one server."""
    defaults: ModelDefaults | None = None
    """The model's generation_config, when the operator gave it."""
    priority: bool = True
    """Whether to pass priorities on."""
    openai: bool = True
    """Whether to pass the OpenAI API through."""


class Action(Protocol[T_co]):
    """Something to do at one server, over a new connection when `fresh`."""

    async def __call__(self, upstream: Upstream, *, fresh: bool) -> T_co: ...


class RemoteEngine:
    """vLLM servers behind the gateway's seam. They all serve the same model."""

    def __init__(self, options: UpstreamOptions) -> None:
        self._options = options
        self._upstreams: list[Upstream] = []
        self._first: Profile | None = None
        self._changed = asyncio.Event()
        self._background: set[asyncio.Task[None]] = set()
        self.openai = RemoteOpenAI(self._somewhere) if options.openai else None

    async def start(self, on_death: Callable[[str], None]) -> ModelInfo:
        """Ready as soon as one server is. There is no death here: servers may come back."""
        for url in self._options.urls:
            self._add(url)
        log.info("waiting for a vLLM server at %s", ", ".join(self._options.urls))
        await self._changed.wait()
        gauges = (upstream.gauges for upstream in self._upstreams)
        return self._describe(self._model, next(filter(None, gauges), None))

    def _add(self, url: str) -> None:
        options = self._options
        client = Client(url, api_key=options.api_key, connect_timeout=options.connect_timeout)
        upstream = Upstream(
            client, priority=options.priority, period=options.check_period, keep=self._keep
        )
        self._upstreams.append(upstream)
        self._keep(upstream.watch(self._objection, self._changed.set))

    def _objection(self, profile: Profile) -> str | None:
        """The first server decides what is served; the others have to be like it."""
        first = self._first
        if first is None:
            self._first = self._with_defaults(profile)
            return None
        if not set(first.names) <= set(profile.names):
            return f"it serves {', '.join(profile.names)}, not {', '.join(first.names)}"
        if profile.max_model_len < first.max_model_len:
            return f"its context is {profile.max_model_len}, not {first.max_model_len}"
        if not first.media <= profile.media:
            return "it does not take the same media"
        return None

    def _with_defaults(self, profile: Profile) -> Profile:
        own = self._options.defaults
        return profile if own is None else replace(profile, defaults=own)

    @property
    def _model(self) -> Profile:
        if self._first is None:
            raise self._nobody()
        return self._first

    @staticmethod
    def _nobody() -> GatewayError:
        return ConnectionFailedError(reached=False).answer()

    def _describe(self, first: Profile, gauges: Gauges | None) -> ModelInfo:
        """What the first server says; the others are taken to be of its size."""
        options = self._options
        servers = len(options.urls)
        blocks = None if gauges is None else gauges.kv_blocks
        if options.max_num_seqs is None:
            log.info(
                "each server is taken to run %d sequences at once: vLLM does not tell",
                ASSUMED_MAX_NUM_SEQS,
            )
        return ModelInfo(
            names=first.names,
            max_model_len=first.max_model_len,
            max_position_embeddings=first.max_model_len,
            vocab_size=_UNKNOWN_VOCABULARY,
            max_num_seqs=(options.max_num_seqs or ASSUMED_MAX_NUM_SEQS) * servers,
            priority_scheduling=first.priority,
            defaults=first.defaults or ModelDefaults(),
            # How many fit one request the server knows, and refuses more itself.
            media=dict.fromkeys(first.media, MAX_ITEMS),
            kv_blocks=None if blocks is None else blocks * servers,
            block_size=None if gauges is None else gauges.block_size,
            model_path=first.root,
        )

    async def tokenize(self, text: str) -> list[int]:
        def document(upstream: Upstream) -> dict[str, Any]:
            return {"model": upstream.model, "prompt": text}

        return await self._tokens(document)

    async def _tokens(
        self, document: Callable[[Upstream], dict[str, Any] | LargeBody]
    ) -> list[int]:
        limit = _HEAD + _PER_TOKEN * self._model.max_model_len

        async def ask(upstream: Upstream, *, fresh: bool) -> bytes:
            with upstream.asked():
                return await upstream.client.ask(
                    *("POST", "/tokenize", document(upstream)),
                    within=_TOKENIZE_WITHIN,
                    limit=limit,
                    fresh=fresh,
                )

        try:
            tokens = orjson.loads(await self._somewhere(ask))["tokens"]
        except AnswerTooLargeError:
            raise GenerationError('"text_input" gives more prompt tokens than fit') from None
        except (orjson.JSONDecodeError, TypeError, KeyError):
            raise IncompleteGeneration("the engine's answer makes no sense") from None
        return _ids(tokens)

    async def pieces(self, ids: list[int]) -> list[str]:
        upstream = self._pick([])
        if upstream is None:
            raise self._nobody()
        return [await upstream.spelled(token_id) for token_id in ids]

    async def prepare(self, parts: Sequence[PromptPart]) -> Prompt:
        if not self._model.media:
            text = "".join(part.text for part in parts if isinstance(part, TextPart))
            return Prompt(await self.tokenize(text))
        message = ChatMessage(parts)
        try:
            return Prompt(await self._counted(message), message)
        except (RefusedError, FailedError) as error:
            message.close()
            if error.is_about_content:
                await self._find_refused(parts, error.said)
            raise
        except BaseException:
            message.close()
            raise

    async def _counted(self, message: ChatMessage) -> list[int]:
        return await self._tokens(lambda upstream: message.body({"model": upstream.model}))

    async def _find_refused(self, parts: Sequence[PromptPart], said: bytes) -> None:
        """InvalidInput for the part that a server refuses, where that can be found out."""
        placeholder = _PLACEHOLDER.search(said.decode(errors="replace"))
        if placeholder is not None:
            check_no_text(parts, placeholder[1])
        for index, part in enumerate(parts):
            if isinstance(part, Medium):
                with named(index):
                    await self._try_alone(part)

    async def _try_alone(self, medium: Medium) -> None:
        # A server that does not take a good medium any more is itself at fault.
        if not await self._takes(medium) and await self._takes(sample(medium.kind)):
            raise MediaRefused(
                "is refused by the server's model: it cannot be decoded, or is too short, "
                "too small or of an odd shape"
            )

    async def _takes(self, medium: Medium) -> bool:
        message = ChatMessage([medium, TextPart(".")])
        try:
            await self._counted(message)
        except (RefusedError, FailedError) as error:
            if not error.is_about_content:
                raise
            return False
        finally:
            message.close()
        return True

    async def submit(self, request: EngineRequest) -> TokenStream:
        message: ChatMessage | None = request.payload
        try:
            return await self._submit(request, message)
        finally:
            if message is not None:
                message.close()

    async def _submit(self, request: EngineRequest, message: ChatMessage | None) -> TokenStream:
        # Not the loop's time, which uvloop tells in whole milliseconds.
        sent = time.monotonic()
        tries = itertools.count()

        async def open_stream(upstream: Upstream, *, fresh: bool) -> RemoteStream:
            profile, number = self._with_defaults(upstream.profile), next(tries)
            document = (
                completion(request, profile, try_number=number)
                if message is None
                else chat(request, message, profile, try_number=number)
            )
            upstream.taken()
            try:
                response = await upstream.open(document, request.trace, fresh=fresh)
            except BaseException:
                upstream.left()
                raise
            return RemoteStream(upstream, response, request, sent)

        return await self._somewhere(open_stream)

    async def _somewhere(self, action: Action[T]) -> T:
        """Do it on the least busy server; on another one when its connection fails.

        Nothing is tried twice once a byte of an answer has come. A server whose
        connection broke is asked once more, over a fresh one, when no other is left.
        """
        tried: list[Upstream] = []
        failure = ConnectionFailedError(reached=False)
        for _ in range(_TRIES):
            upstream = self._pick(tried)
            if upstream is None:
                break
            try:
                return await action(upstream, fresh=upstream in tried)
            except ConnectionFailedError as error:
                failure = error
                tried.append(upstream)
                self._note_failure(upstream, failure)
        raise failure.answer()

    def _pick(self, tried: Sequence[Upstream]) -> Upstream | None:
        up = [upstream for upstream in self._upstreams if upstream.up]
        choices = [upstream for upstream in up if upstream not in tried]
        choices = choices or [upstream for upstream in up if tried.count(upstream) == 1]
        if not choices:
            return None
        return min(choices, key=lambda upstream: (upstream.busy, upstream.picked))

    def _note_failure(self, upstream: Upstream, failure: ConnectionFailedError) -> None:
        if failure.reached:
            upstream.suspect()
        else:
            upstream.refused()

    @property
    def available(self) -> bool:
        return any(upstream.up for upstream in self._upstreams)

    def load(self) -> Load:
        """All servers that are up together, as they last told."""
        loads = (upstream.load() for upstream in self._upstreams)
        return total(load for load in loads if load is not None)

    async def close(self) -> None:
        for task in list(self._background):
            task.cancel()
        upstreams, self._upstreams = self._upstreams, []
        for upstream in upstreams:
            await upstream.client.close()

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        """Run beside everything else; the loop itself holds tasks only weakly."""
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


def _ids(tokens: Any) -> list[int]:
    if not isinstance(tokens, list) or not all(type(item) is int for item in tokens):
        raise IncompleteGeneration("the engine's answer makes no sense")
    return tokens
