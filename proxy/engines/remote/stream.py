"""The tokens of one request, read from the upstream when their reader asks for them.

There is no task and no queue between the socket and the reader: while a slow
client blocks the reader, nothing is read, and TCP holds the upstream back. What
aiohttp buffers meanwhile is bounded, see `client`.

Tokens that have been read are handed over before anything ends: an end from
outside (stopInfer, a clock) that finds the reader waiting with tokens in hand
cuts that wait short, and comes right after them. What arrived before a
connection broke comes before the failure.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Final, Protocol, TypeVar

import aiohttp

from proxy.engines.base import EngineRequest
from proxy.engines.remote.chunks import DONE, BadChunkError, Chunk, plain_token, read_chunk
from proxy.engines.remote.client import BROKEN, refusal, unread
from proxy.engines.remote.pieces import whole
from proxy.engines.remote.sse import LineTooLongError, SseSplitter
from proxy.engines.stream import TokenStream
from translators.errors import GatewayError, IncompleteGeneration
from translators.tokens import Alternative, Finish, FinishReason, Token

log = logging.getLogger(__name__)

T = TypeVar("T")

_LINE: Final = 256 * 1024
"""Bytes of one event: more than are read at once. And for each prompt token, which the first
event repeats:"""
_PER_PROMPT_TOKEN: Final = 12
_BLOCK: Final = 16 * 1024
"""Bytes read at once: what waits for a slow client is still in the socket, not in tokens."""
_MISSES: Final = 8
"""Chunks in a row that are read as any JSON, before no other way is tried any more."""
_HELD: Final = 64
"""Tokens without text that are looked at again at the end."""
_REFUSAL_GRACE: Final = 0.1
"""Seconds to wait for a first word of a server that has sent its 200: some checks come after it."""
_REST: Final = 1.0
"""Seconds that an upstream gets to say the rest after the last token."""
_REST_BYTES: Final = 64 * 1024
_token: Final = partial(tuple.__new__, Token)
"""`Token` of all its fields, in half the time: what a NamedTuple checks is not checked."""
_NO_ID: Final = -1
"""The id of a token whose id the upstream does not tell."""


class Source(Protocol):
    """What a stream asks of its upstream."""

    name: str

    @property
    def tells_queue_time(self) -> bool:
        """Whether the last event of an answer says how long its request waited."""

    def decoding(self, change: int) -> None:
        """One stream more (1) has got its first token, or one fewer (-1) goes on."""

    def batch_size(self) -> int:
        """Sequences that run there now, by the rule of docs/sidecar.md."""

    def queue_estimate(self) -> float:
        """Seconds that requests wait there now, where nobody tells it for each."""

    def known(self, ids: list[int], text: str) -> list[str] | None:
        """The text of a merged chunk, token by token, where that is known; else None."""

    async def cut(self, begun: list[int], ids: list[int], text: str) -> list[str]:
        """The same, with what has to be asked; `begun` gave no text before it."""

    async def spelled(self, token_id: int) -> str:
        """A token's text by itself; empty where the server does not tell."""

    async def tail(self, ids: list[int]) -> str:
        """What tokens without text hold of an incomplete character."""

    def left(self) -> None:
        """A stream has ended, however it did. Called once for each."""

    def suspect(self) -> None:
        """A connection broke: look after the upstream soon."""

    def keep(self, work: Coroutine[Any, Any, None]) -> None:
        """Run beside everything else, until the engine closes."""


class RemoteStream(TokenStream):
    """One answer of one upstream. `sent` is the monotonic time at which it was asked for."""

    __slots__ = (
        "_away",
        "_carried",
        "_count",
        "_due",
        "_gone",
        "_held",
        "_last",
        "_limit",
        "_lines",
        "_misses",
        "_previous",
        "_response",
        "_source",
        "_top",
    )

    def __init__(
        self, source: Source, response: aiohttp.ClientResponse, request: EngineRequest, sent: float
    ) -> None:
        super().__init__(self._hang_up)
        self.last_push = sent
        self._source = source
        self._response = response
        self._lines = SseSplitter(_LINE + _PER_PROMPT_TOKEN * len(request.prompt))
        self._top = request.sampling.logprobs
        self._misses = 0 if self._top is None else _MISSES
        self._previous = sent
        self._count = 0
        self._held: list[int] = []
        self._carried = ""
        self._last: Token | None = None
        self._away = False
        self._gone = False
        self._limit: asyncio.Timeout | None = None
        """Of the wait that an end cuts short, while there is one."""
        self._due: Callable[[], None] | None = None
        """The end that came during that wait."""

    @property
    def idle(self) -> bool:
        """Whether the reader waits here. A blocked reader leaves the tokens in the socket."""
        return not self._pending and not self._ended and not self._away

    def stop(self) -> None:
        self._end_by(super().stop)

    def fail(self, error: GatewayError) -> None:
        self._end_by(partial(super().fail, error))

    def _end_by(self, end: Callable[[], None]) -> None:
        """End now, or as soon as the tokens in hand are handed over, which then wait no longer."""
        if self._limit is None:
            end()
        elif self._due is None:
            self._due = end
            if not self._limit.expired():
                self._limit.reschedule(self._loop.time())

    async def accepted(self) -> None:
        """Wait a moment for the first word, since it may be a refusal.

        vLLM checks some things only after its 200. Raises that refusal.
        """
        deadline = self._loop.time() + _REFUSAL_GRACE
        while not self._pending and not self._ended and self._loop.time() < deadline:
            await self._read(within=deadline - self._loop.time())
        self.raise_if_failed()

    async def __anext__(self) -> list[Token]:
        self._away = False
        while not self._pending and not self._ended:
            await self._read(within=None if self._last is None else self._rest_of_time())
        self._away = True
        return await super().__anext__()

    def _rest_of_time(self) -> float:
        """Seconds that the upstream still has to say the rest, however much it says."""
        return max(self.last_push + _REST - self._loop.time(), 0.0)

    async def _read(self, within: float | None) -> None:
        try:
            block = await self._block(within)
            if not block:
                self._body_ended()
                return
            await self._events(block, time.monotonic())
        except TimeoutError:
            self._deliver_last()
        except BROKEN:
            self._break("the engine's connection broke")
        except (BadChunkError, LineTooLongError) as error:
            self._break("the engine's answer makes no sense", type(error).__name__)
        finally:
            if self._due is not None:
                self._deliver_last()
                self._due()

    async def _block(self, within: float | None) -> bytes:
        """What has arrived, up to a bound; empty at the end. Raises BROKEN after the last of it."""
        content = self._response.content
        try:
            if within is None:
                return await content.read(_BLOCK)
            return await self._until_due(content.read(_BLOCK), within)
        except BROKEN:
            # What we closed ourselves is not read on.
            block = b"" if self._ended else unread(content, _BLOCK)
            if not block:
                raise
            return block

    async def _until_due(self, answer: Awaitable[T], within: float | None = None) -> T:
        """Raises TimeoutError after `within` seconds, and when an end is due."""
        try:
            async with asyncio.timeout(within if self._due is None else 0) as self._limit:
                return await answer
        finally:
            self._limit = None

    async def _told(self, answer: Awaitable[T], otherwise: T) -> T:
        """What the upstream says of tokens in hand; `otherwise` when an end is due before."""
        try:
            return await self._until_due(answer)
        except TimeoutError:
            return otherwise

    async def _events(self, block: bytes, now: float) -> None:
        plain: list[tuple[int, str]] = []
        may_be_plain = self._may_be_plain
        try:
            for payload in self._lines.feed(block):
                if may_be_plain and (token := plain_token(payload)) is not None:
                    plain.append(token)
                    continue
                self._add(plain, now)
                plain = []
                self._misses += 1
                await self._take(payload, now)
                if self._ended:
                    return
                may_be_plain = self._may_be_plain
        finally:
            self._add(plain, now)

    @property
    def _may_be_plain(self) -> bool:
        """Whether to try: not before the first token, nor with a server whose chunks never are."""
        tries = self._count > 0 and self._misses < _MISSES
        return tries and not self._carried and self._last is None

    def _add(self, found: list[tuple[int, str]], now: float) -> None:
        """Take tokens that came together: the first has waited for all of them."""
        if not found:
            return
        self._misses = 0
        latency, batch_size = now - self._previous, self._source.batch_size()
        for token_id, text in found:
            self._pending.append(_token((token_id, text, latency, 0.0, batch_size, None, None, ())))
            latency = 0.0
            if not text or self._held:
                self._note_text(token_id, text)
        if self._observer is not None:
            for token in self._pending[-len(found) :]:
                self._observer(token)
        self._count += len(found)
        self._previous = self.last_push = now

    def _note(self, token_id: int, text: str) -> None:
        self._count += 1
        self._note_text(token_id, text)

    def _note_text(self, token_id: int, text: str) -> None:
        """Remember the tokens that have shown no text yet."""
        if not text:
            if len(self._held) < _HELD:
                self._held.append(token_id)
        elif self._held:
            self._held.clear()

    async def _take(self, payload: bytes, now: float) -> None:
        if payload == DONE:
            self._body_ended()
            return
        chunk = read_chunk(payload)
        if self._last is not None:
            self._last = self._last._replace(waited=chunk.queued or 0.0)
        elif chunk.status is not None:
            log.info("%s: status %d within a stream", self._source.name, chunk.status)
            self.fail(refusal(chunk.status))
        else:
            await self._several(chunk, now)

    async def _several(self, chunk: Chunk, now: float) -> None:
        """Any number of tokens, an end, or both."""
        ids, text = self._ids(chunk), self._carried + chunk.text
        self._carried = "" if ids else text
        if not ids:
            if chunk.reason is not None:
                self._finish_without_token(chunk.reason)
            return
        # They are here: the clock of the next token does not count the time to tell them apart.
        self.last_push = self._loop.time()
        texts = await self._texts(ids, text, chunk)
        times = self._times(len(ids), now - self._previous)
        for index, token_id in enumerate(ids):
            ends = chunk.reason if index == len(ids) - 1 else None
            finish = None if ends is None else await self._finish(token_id, texts[index], ends)
            likely = await self._likely(chunk, index)
            self._emit(token_id, texts[index], times[index], finish, *likely)
        self._previous = now

    async def _likely(
        self, chunk: Chunk, index: int
    ) -> tuple[float | None, tuple[Alternative, ...]]:
        """The log probability of one token, and the likeliest ones in its place."""
        if not chunk.logprobs or index >= len(chunk.logprobs):
            return None, ()
        told = chunk.logprobs[index]
        ranked = told.top[: self._top]
        texts = await self._told(self._spelled([other for other, _ in ranked]), [""] * len(ranked))
        pairs = zip(ranked, texts, strict=True)
        return told.own, tuple(Alternative(other, text, p) for (other, p), text in pairs)

    async def _spelled(self, ids: list[int]) -> list[str]:
        return [await self._source.spelled(token_id) for token_id in ids]

    def _ids(self, chunk: Chunk) -> list[int]:
        if chunk.ids is not None:
            return chunk.ids
        ended_silently = chunk.reason is not None and not chunk.text
        count = int(not ended_silently) if chunk.total is None else chunk.total - self._count
        return [_NO_ID] * max(count, 0)

    async def _texts(self, ids: list[int], text: str, chunk: Chunk) -> list[str]:
        """The texts of a chunk's tokens; the end token has none."""
        ends = chunk.reason is FinishReason.END and len(ids) > 1
        spoken = ids[:-1] if ends else ids
        if chunk.ids is None or len(spoken) == 1:
            texts = whole(spoken, text)
        else:
            texts = self._source.known(spoken, text) or await self._cut(spoken, text)
        return [*texts, ""] if ends else texts

    async def _cut(self, ids: list[int], text: str) -> list[str]:
        return await self._told(self._source.cut(self._held, ids, text), whole(ids, text))

    def _times(self, count: int, elapsed: float) -> list[float]:
        """Seconds before each token of a chunk: shared evenly, but for the first chunk."""
        if not self._count:
            return [elapsed] + [0.0] * (count - 1)
        return [elapsed / count] * count

    async def _finish(self, token_id: int, text: str, reason: FinishReason) -> Finish:
        held = [] if text else self._held
        if not text and reason is not FinishReason.END:
            held = [*held, token_id]
        known = [item for item in held if item != _NO_ID]
        return Finish(reason, await self._told(self._source.tail(known), "") if known else "")

    def _finish_without_token(self, reason: FinishReason) -> None:
        if reason is FinishReason.END or self._carried:
            # An end token that the upstream does not count among its ids.
            latency = time.monotonic() - self._previous
            self._emit(_NO_ID, self._carried, latency, Finish(reason))
        else:
            self._deliver_last()
            self.stop()

    def _emit(
        self,
        token_id: int,
        text: str,
        latency: float,
        finish: Finish | None,
        logprob: float | None = None,
        top: tuple[Alternative, ...] = (),
    ) -> None:
        waited = 0.0
        if not self._count:
            self._source.decoding(1)
            waited = min(self._source.queue_estimate(), latency)
        self._note(token_id, text)
        batch_size = self._source.batch_size()
        token = Token(token_id, text, latency, waited, batch_size, finish, logprob, top)
        if finish is None:
            self.push(token)
        else:
            self._last = token
            self.last_push = self._loop.time()
            if not self._source.tells_queue_time:
                self._deliver_last()

    def _deliver_last(self) -> None:
        """Hand over the token with the finish, if it is there, and let the upstream go."""
        if self._last is not None and not self._ended:
            self.push(self._last)
            self._let_go()

    def _body_ended(self) -> None:
        self._deliver_last()
        if not self._ended:
            self._break("the engine's answer ended early")

    def _break(self, message: str, why: str = "") -> None:
        if self._ended:
            # Ended here, which closed the connection: no news.
            return
        self._deliver_last()
        if not self._ended:
            log.warning("%s: %s %s", self._source.name, message, why)
            self._source.suspect()
            self.fail(IncompleteGeneration(message))

    def _hang_up(self) -> None:
        """Ended before the upstream did: its connection is closed, and it aborts the request."""
        self._response.close()
        self._count_out()

    def _let_go(self) -> None:
        """Ended by the upstream: its connection is free again after the last bytes."""
        self._count_out()
        if not self._response.content.is_eof():
            self._source.keep(self._read_rest())

    def _count_out(self) -> None:
        if self._gone:
            return
        self._gone = True
        if self._count:
            self._source.decoding(-1)
        self._source.left()

    async def _read_rest(self) -> None:
        size = 0
        try:
            async with asyncio.timeout(_REST):
                while size <= _REST_BYTES and (block := await self._response.content.readany()):
                    size += len(block)
        except (TimeoutError, *BROKEN):
            log.debug("%s does not end its answer", self._source.name)
        finally:
            # Frees the connection after the end, closes it before.
            self._response.release()
