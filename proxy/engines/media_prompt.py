"""Text and media as a prompt of vLLM's, by vLLM's own renderer and loaders.

Imports nothing of vLLM: `proxy.engines.embedded` hands over what is needed.
vLLM knows a medium by a URL that only we can resolve. Its connector, which
fetches URLs, is replaced by one that reads the media at hand and nothing else,
so that no URL of a client ever reaches vLLM.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import itertools
import logging
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

from proxy.engines.base import Prompt
from proxy.engines.frame_limit import limit_frames
from proxy.engines.image_check import check_image
from proxy.engines.video_check import Film, check_video
from proxy.media.content import Medium, PromptPart
from proxy.media.turns import busy
from proxy.settings import SettingsError
from proxy.threads import FewThreads
from translators.media import TextPart, named
from translators.media_formats import MAX_ITEMS, MediaKind, rule_of
from translators.media_urls import MediaRefused

log = logging.getLogger(__name__)

CONNECTOR_NAME: Final = "mindie_gateway"
_AT_ONCE: Final = 2
"""Prompts that are made at the same time, media that are decoded, and videos that are tried
out: each may hold hundreds of megabytes."""
_WITH_WAITING: Final = 2
"""How much longer than the decoding of one medium a prompt may take to make."""
_NO_TEMPLATE: Final = "ChatTemplateResolutionError"
"""vLLM's error for a model without a chat template, a ValueError; its module has moved."""
NO_MEDIA: Final = (
    "the OpenAI API takes no media here: send them to /v2/models/{model}/generate_stream, "
    "or put the gateway in front of a vLLM server (docs/openai.md)"
)
_RESAMPLERS: Final = {"pyav": "av"}
"""The module of a method of resampling where it has another name."""
_DECODERS: Final = {MediaKind.AUDIO: ("soundfile", "av"), MediaKind.VIDEO: ("cv2",)}
"""What vLLM decodes with: one of these has to be installed."""
_LENGTH: Final = "input_tokens"
"""What vLLM's error is about when a prompt is too long."""
_Shown = str | tuple[MediaKind, str]
"""A text, or a medium by the URL that it has in the table."""


@dataclass(frozen=True, slots=True)
class Tools:
    """What is needed of vLLM, in the installed version's spelling."""

    connector: Any
    """The class MediaConnector."""
    registry: Any
    """Where a connector is registered by name."""
    chat_params: Any
    """The class ChatParams."""
    components: Callable[[Any, Any], Any]
    """(model config, engine input) to its text and tokens."""
    model_class: Callable[[Any], Any]
    """The class of a model, which knows its placeholders."""
    refusals: tuple[type[Exception], ...]
    """Errors that are about the request."""
    video_processor: Callable[[Any], str | None]
    """What processes a model's videos, and with that which frames are taken of them."""


class MediaTable:
    """The media that vLLM may read now, by the URLs it knows them by."""

    def __init__(self, max_pixels: int, seconds: float) -> None:
        self._max_pixels = max_pixels
        self._seconds = seconds
        """That a medium may take to decode."""
        self._threads = FewThreads(_AT_ONCE)
        self._children = asyncio.Semaphore(_AT_ONCE)
        self._media: dict[str, Medium] = {}

    @contextmanager
    def shown(self, parts: Sequence[PromptPart]) -> Iterator[list[_Shown]]:
        """The parts as texts and as (kind, URL), until the end of the block."""
        urls: list[str] = []
        try:
            shown: list[_Shown] = []
            for part in parts:
                if isinstance(part, TextPart):
                    shown.append(part.text)
                else:
                    urls.append(f"mindie-media:{uuid.uuid4().hex}")
                    self._media[urls[-1]] = part
                    shown.append((part.kind, urls[-1]))
            yield shown
        finally:
            for url in urls:
                self._media.pop(url, None)

    async def load(self, url: str, loader: Any) -> Any:
        """What vLLM's `loader` makes of a medium. InvalidInput when it cannot.

        ValueError for a URL that is not one of these: a client of vLLM's own API gave
        it, of which nothing is fetched here and nothing must get into an error.
        """
        medium = self._media.get(url)
        if medium is None:
            raise ValueError(NO_MEDIA)
        with named(medium.index):
            film = None
            if medium.kind is MediaKind.VIDEO:
                async with self._children:
                    film = await check_video(medium.content, self._max_pixels)
            return await self._decoded(medium, loader, film)

    async def _decoded(self, medium: Medium, loader: Any, film: Film | None) -> Any:
        # Of its own: the request may end before the thread does.
        content = medium.content.duplicate()

        def decode() -> Any:
            data = content.read()
            content.close()
            return _decode(medium, data, loader, film, self._max_pixels)

        try:
            return await self._threads.run(decode, self._seconds)
        except TimeoutError:
            raise MediaRefused("takes too long to decode") from None


def _decode(medium: Medium, data: bytes, loader: Any, film: Film | None, max_pixels: int) -> Any:
    """`film` is what is known of a video."""
    reason = f"cannot be decoded as {medium.kind.value}"
    try:
        if medium.kind is MediaKind.IMAGE:
            check_image(data, medium.format.name, max_pixels)
        if film is not None:
            limit_frames(loader, film.pixels, max_pixels)
        loaded = loader.load_bytes(data)
        if medium.kind is MediaKind.IMAGE or not _is_empty(loaded):
            return loaded
        reason = f"holds no {medium.kind.value}"
    except MediaRefused:
        raise
    except Exception as error:
        # Decoders raise what they like; all of it is about these bytes.
        log.info("a medium could not be decoded: %s", type(error).__name__)
    if film is not None and film.frames == 1:
        reason = "has a single frame, and the video loader of this model needs two"
    raise MediaRefused(reason)


def _is_empty(loaded: Any) -> bool:
    """Whether there are no frames, or no samples: vLLM's loaders may give that for an answer."""
    values, _ = getattr(loaded, "media", loaded)
    return 0 in values.shape


def make_connector(base: type[Any], table: MediaTable) -> type[Any]:
    """A connector of vLLM's that reads the table and fetches nothing."""

    class Connector(base):  # type: ignore[misc]
        def load_from_url(self, url: str, media_io: Any, **options: Any) -> Any:
            raise ValueError(NO_MEDIA)

        async def load_from_url_async(self, url: str, media_io: Any, **options: Any) -> Any:
            return await table.load(url, media_io)

    return Connector


class MediaPrompts:
    """Prepares prompts of several parts for one vLLM engine."""

    def __init__(
        self, engine: Any, tools: Tools, style: str, max_pixels: int, seconds: float
    ) -> None:
        """`seconds` is how long a medium may take to decode."""
        self._renderer = engine.renderer
        self._model = engine.vllm_config.model_config
        self._tools = tools
        self._seconds = seconds
        self._table = MediaTable(max_pixels, seconds)
        connector = make_connector(tools.connector, self._table)
        tools.registry.register(CONNECTOR_NAME)(connector)
        loading = self._model.multimodal_config.media_io_kwargs
        self._connector = connector(media_io_kwargs=loading)
        self._params = tools.chat_params(
            chat_template_kwargs={"add_generation_prompt": True, "continue_final_message": False}
        )
        # As vLLM's own chat API does: a template writes the beginning token itself.
        chat_tokens = self._renderer.default_chat_tok_params
        self._chat_tokens = chat_tokens.with_kwargs(add_special_tokens=False)
        self._chat = self._choose(style)
        self._turns = asyncio.Semaphore(_AT_ONCE)
        processing = self._renderer.get_mm_processor().info
        self.limits = media_limits(processing.allowed_mm_limits)
        if MediaKind.AUDIO in self.limits:
            warn_about_resampler(processing.data_parser)
        self.placeholders = self._placeholders(engine.get_tokenizer().all_special_tokens)

    def _choose(self, style: str) -> bool:
        """Whether prompts go through the chat template. Settled once, at the start."""
        if style == "plain":
            return False
        try:
            self._renderer.render_messages([_user_message(["."])], self._params)
        except ValueError as error:
            # Any other: the template wants more than this message, but there is one.
            if type(error).__name__ != _NO_TEMPLATE:
                return True
            if style == "chat":
                raise SettingsError(
                    "media_prompt is chat, but the model has no chat template"
                ) from None
            return False
        return True

    def _placeholders(self, special_tokens: Sequence[str]) -> tuple[str, ...]:
        """What stands for media in this model's prompts, and the special tokens in it."""
        model_class = self._tools.model_class(self._model)
        whole: set[str | None] = set()
        for kind, place in itertools.product(MediaKind, range(1, MAX_ITEMS + 1)):
            # Of a kind that a model does not have it says so in ways of its own.
            with suppress(Exception):
                whole.add(model_class.get_placeholder_str(kind.value, place))
        texts = {text for text in whole if text}
        tokens = [token for token in special_tokens if any(token in text for text in texts)]
        return shortest(texts.union(tokens))

    async def prepare(self, parts: Sequence[PromptPart]) -> Prompt:
        """The prompt, decoded and counted.

        InvalidInput for a medium that the model cannot be shown by itself either, or that
        takes too long; ServiceUnavailable when all together take too long; other foreign
        errors are raised as they come.
        """
        try:
            async with asyncio.timeout(_WITH_WAITING * self._seconds), self._turns:
                with self._table.shown(parts) as shown:
                    rendered = await self._rendered(shown)
        except TimeoutError:
            raise busy() from None
        components = self._tools.components(self._model, rendered)
        return Prompt(list(components.token_ids), rendered)

    async def _rendered(self, shown: list[_Shown]) -> Any:
        try:
            return await self._render(shown)
        except self._tools.refusals as error:
            if getattr(error, "parameter", None) != _LENGTH:
                await self._find_refused(shown)
            raise

    async def _render(self, shown: list[_Shown]) -> Any:
        return await (self._by_template(shown) if self._chat else self._plain(shown))

    async def _find_refused(self, shown: list[_Shown]) -> None:
        for index, part in enumerate(shown):
            if not isinstance(part, str):
                with named(index):
                    await self._try_alone(part)

    async def _try_alone(self, part: _Shown) -> None:
        try:
            await self._render([part, "."])
        except ImportError as error:
            log.warning("a library for media is missing: %s", type(error).__name__)
            raise MediaRefused(
                "needs a library that the server does not have, such as one for sound of this rate"
            ) from None
        except self._tools.refusals as error:
            log.info("the model refuses a medium: %s", type(error).__name__)
            raise MediaRefused(
                "is refused by the model's processor: too short, too small, or of an odd shape"
            ) from None

    async def _by_template(self, shown: list[_Shown]) -> Any:
        # Without its cache of what the engine was sent: a prompt that is refused
        # after this would leave an entry there for data that was never sent.
        _, rendered = await self._renderer.render_chat_async(
            [[_user_message(shown)]], self._params, self._chat_tokens, skip_mm_cache=True
        )
        return rendered[0]

    async def _plain(self, shown: list[_Shown]) -> Any:
        text: list[str] = []
        media: defaultdict[str, list[Any]] = defaultdict(list)
        model_class = self._tools.model_class(self._model)
        for part in shown:
            if isinstance(part, str):
                text.append(part)
                continue
            kind, url = part
            media[kind.value].append(await self._fetched(kind, url))
            place = model_class.get_placeholder_str(kind.value, len(media[kind.value]))
            text.append(place or "")
        prompt = {"prompt": "".join(text), "multi_modal_data": dict(media)}
        rendered = await self._renderer.render_cmpl_async([prompt], skip_mm_cache=True)
        return rendered[0]

    async def _fetched(self, kind: MediaKind, url: str) -> Any:
        fetch = getattr(self._connector, f"fetch_{kind.value}_async")
        if kind is MediaKind.VIDEO:
            return await fetch(url, video_processor=self._tools.video_processor(self._model))
        return await fetch(url)


def shortest(texts: Collection[str]) -> tuple[str, ...]:
    """Those that hold none of the others: where one of all stands, one of these does."""
    return tuple(
        sorted(text for text in texts if not any(other in text for other in texts if other != text))
    )


def _user_message(shown: Sequence[str | tuple[MediaKind, str]]) -> dict[str, Any]:
    content: list[dict[str, Any]] = []
    for part in shown:
        if isinstance(part, str):
            content.append({"type": "text", "text": part})
        else:
            field = rule_of(part[0]).field
            content.append({"type": field, field: {"url": part[1]}})
    return {"role": "user", "content": content}


def media_limits(allowed: Mapping[str, int]) -> dict[MediaKind, int]:
    """The most items of each kind, from vLLM's limits by modality.

    `vision_chunk` is the name of some models for images and videos alike. A kind
    that this installation cannot decode is left out.
    """
    limits = {kind: allowed.get(kind.value, 0) for kind in MediaKind}
    if "vision_chunk" in allowed:
        limits[MediaKind.IMAGE] = limits[MediaKind.VIDEO] = allowed["vision_chunk"]
    for kind, decoders in _DECODERS.items():
        if limits[kind] and not any(map(importlib.util.find_spec, decoders)):
            log.warning(
                "the model takes %s, but %s is not installed: refused",
                kind.value,
                " or ".join(decoders),
            )
            del limits[kind]
    return {kind: limit for kind, limit in limits.items() if limit}


def warn_about_resampler(parser: Any) -> None:
    """Say at the start when only sound of the model's own rate can be taken."""
    resampler = parser.audio_resampler
    if resampler.target_sr is None:
        return
    module = _RESAMPLERS.get(resampler.method, resampler.method)
    try:
        importlib.import_module(module)
    except Exception:
        # Built for another torch, it fails in other ways than by not being there.
        log.warning(
            "%s is missing or does not fit: sound of another rate than %g Hz is refused",
            module,
            resampler.target_sr,
        )
