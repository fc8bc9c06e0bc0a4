"""One vLLM server: whether it is up, what it can do, how busy it is."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import aiohttp

from proxy.engines.base import Load
from proxy.engines.remote.client import AnswerTooLargeError, Client, ConnectionFailedError
from proxy.engines.remote.gauges import Gauges, read_gauges
from proxy.engines.remote.message import LargeBody
from proxy.engines.remote.probe import Profile, UnfitError, detokenize, probe
from proxy.engines.remote.spelling import Spelling
from translators.errors import GatewayError, ServiceUnavailable

log = logging.getLogger(__name__)

_DOWN_PERIOD: Final = 0.5
"""Seconds between looks at a server that is not up."""
_CHECK_WITHIN: Final = 5.0
"""Seconds that /health and /metrics may take: a busy server is slow, not down."""
_STRIKES: Final = 2
"""Checks in a row without an answer, after which a server counts as down."""

Fits = Callable[[Profile], str | None]
"""Why a server with this profile cannot serve beside the others; None when it can."""
Keep = Callable[[Coroutine[Any, Any, None]], None]


class Upstream:
    """One server and the requests that this process has there.

    `up` servers take work; `outstanding` counts the requests handed to it,
    `_decoding` those of them that have got a first token.
    """

    def __init__(self, client: Client, *, priority: bool, period: float, keep: Keep) -> None:
        self.client = client
        self.name = client.name
        self.keep = keep
        self.up = False
        self.outstanding = 0
        self.picked = 0.0
        """Loop time at which it got its last request: equals take turns."""
        self.gauges: Gauges | None = None
        self._profile: Profile | None = None
        self._spelling = Spelling(self.name, self._detokenize)
        self._asking = 0
        self._decoding = 0
        self._others = 0
        self._queue_mean = 0.0
        self._priority = priority
        self._period = period
        self._strikes = 0
        self._complaint: str | None = None
        self._look_now = asyncio.Event()

    @property
    def profile(self) -> Profile:
        """What the server can do. ServiceUnavailable before it was up for the first time."""
        if self._profile is None:
            raise ServiceUnavailable("the engine cannot be reached", retry_after=1)
        return self._profile

    @property
    def model(self) -> str:
        """The name that its requests carry."""
        return self.profile.names[0]

    @property
    def tells_queue_time(self) -> bool:
        return self.profile.queue_time

    async def watch(self, fits: Fits, changed: Callable[[], None]) -> None:
        """Look after the server for ever; `changed` is called when it comes or goes."""
        while True:
            before = self.up
            await self._check(fits)
            if self.up is not before:
                changed()
            try:
                async with asyncio.timeout(self._period if self.up else _DOWN_PERIOD):
                    await self._look_now.wait()
            except TimeoutError:
                pass
            self._look_now.clear()

    async def _check(self, fits: Fits) -> None:
        try:
            await self.client.ask("GET", "/health", within=_CHECK_WITHIN)
            if not self.up:
                await self._come_up(fits)
            await self._read_gauges()
            await self._spelling.look()
            self._strikes = 0
        except ConnectionFailedError as failure:
            self._strike(fatal=not failure.reached, why="cannot be reached")
        except ServiceUnavailable as error:
            self._strike(fatal=True, why=_with_notes("says that it is not well", error))
        except GatewayError as error:
            self._strike(fatal=False, why=_with_notes(error.message, error))
        except (UnfitError, AnswerTooLargeError) as error:
            self._take_out(f"cannot be used: {error}")

    async def _come_up(self, fits: Fits) -> None:
        profile = await probe(self.client, priority=self._priority)
        objection = fits(profile)
        if objection is not None:
            raise UnfitError(objection)
        self._profile = profile
        self._spelling.begin(offered=profile.detokenize)
        self._complaint = None
        self.up = True
        log.info("%s takes work", self.name)

    async def _read_gauges(self) -> None:
        decoding, outstanding = self._decoding, self.outstanding
        try:
            page = await self.client.ask("GET", "/metrics", within=_CHECK_WITHIN)
        except (GatewayError, AnswerTooLargeError):
            # Nice to have: the server may well run without.
            self.gauges = None
            return
        gauges = read_gauges(page)
        if gauges is not None:
            # Those before their first token run there as well, unless they wait.
            begun = max(outstanding, self.outstanding) - gauges.waiting
            self._note(gauges, max(decoding, self._decoding, begun))
        self.gauges = gauges

    def _note(self, gauges: Gauges, own: int) -> None:
        """What the reading says about the others, given our own running requests."""
        self._others = max(gauges.running - own, 0)
        if self.gauges is not None:
            ended = gauges.queue_count - self.gauges.queue_count
            waited = gauges.queue_seconds - self.gauges.queue_seconds
            if ended > 0:
                self._queue_mean = max(waited / ended, 0.0)

    def suspect(self) -> None:
        """A connection broke: look soon instead of at the next turn."""
        self._look_now.set()

    def refused(self) -> None:
        """Nobody listens there: take it out at once."""
        self._take_out("cannot be reached")
        self.suspect()

    def _strike(self, *, fatal: bool, why: str) -> None:
        self._strikes += 1
        if fatal or self._strikes >= _STRIKES:
            self._take_out(why)

    def _take_out(self, why: str) -> None:
        was_up, self.up = self.up, False
        self._others = 0
        if was_up or why != self._complaint:
            self._complaint = why
            log.warning("%s %s: no work is given to it", self.name, why)

    async def open(
        self, document: dict[str, Any] | LargeBody, trace: Mapping[str, str], *, fresh: bool
    ) -> aiohttp.ClientResponse:
        """The head of a streamed completion, of a chat when it has media.

        `trace` are headers. Raises as `Client.stream` does.
        """
        path = "/v1/chat/completions" if isinstance(document, LargeBody) else "/v1/completions"
        return await self.client.stream(path, document, trace, fresh=fresh)

    def load(self) -> Load | None:
        """As /metrics last told; None for a server that is down or does not tell."""
        if not self.up or self.gauges is None:
            return None
        gauges = self.gauges
        return Load(
            running=gauges.running,
            waiting=gauges.waiting,
            kv_cache_usage=gauges.kv_cache_usage,
            preemptions=gauges.preemptions,
            prefix_queries=gauges.prefix_queries,
            prefix_hits=gauges.prefix_hits,
        )

    def decoding(self, change: int) -> None:
        self._decoding += change

    @property
    def busy(self) -> int:
        """What it has of ours: requests, and prompts that it is to tokenize."""
        return self.outstanding + self._asking

    @contextmanager
    def asked(self) -> Iterator[None]:
        """It tokenizes a prompt as long as the block lasts."""
        self._asking += 1
        try:
            yield
        finally:
            self._asking -= 1

    def taken(self) -> None:
        """One more request is handed to it."""
        self.outstanding += 1
        self.picked = asyncio.get_running_loop().time()

    def left(self) -> None:
        self.outstanding -= 1

    def batch_size(self) -> int:
        """Our requests past their first token, and the others as /metrics last showed them."""
        return self._decoding + self._others

    def queue_estimate(self) -> float:
        """0 where each request is told its own time; else the mean of those that ended lately."""
        if self.profile.queue_time or self.gauges is None:
            return 0.0
        return self._queue_mean

    def known(self, ids: list[int], text: str) -> list[str] | None:
        return self._spelling.known(ids, text)

    async def cut(self, begun: list[int], ids: list[int], text: str) -> list[str]:
        return await self._spelling.cut(begun, ids, text)

    async def tail(self, ids: list[int]) -> str:
        return await self._spelling.tail(ids)

    async def spelled(self, token_id: int) -> str:
        return await self._spelling.spelled(token_id)

    async def _detokenize(self, ids: list[int]) -> str:
        return await detokenize(self.client, self.model, ids)


def _with_notes(why: str, error: GatewayError) -> str:
    return ": ".join([why, *getattr(error, "__notes__", ())])
