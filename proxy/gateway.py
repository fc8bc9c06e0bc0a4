"""What the handlers share: settings, engine, state, books. One per application."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any, Final

from aiohttp import web
from prometheus_client import REGISTRY

from proxy import legacy
from proxy.access import Access
from proxy.admission import OVERLOADED, RETRY_AFTER, Admission
from proxy.body_memory import BodyMemory
from proxy.connections import Connections
from proxy.crew import ALONE, Deposit, Siblings, Worker
from proxy.engines.base import Engine, Load, ModelInfo
from proxy.live import LiveRequests
from proxy.media.build import media_desk
from proxy.merged_metrics import Figures, figures, inherited, lasting, merged
from proxy.metrics import Metrics
from proxy.mindie_metrics import MindieMetrics
from proxy.outbox import Outbox
from proxy.probe import Probe, see_one_token
from proxy.settings import Settings
from proxy.threads import in_thread
from proxy.tracing import Tracing
from proxy.watchdog import Watchdog
from translators.contract import MAX_PROMPT_TOKENS
from translators.errors import NotFound, ServiceUnavailable

log = logging.getLogger(__name__)

EngineFactory = Callable[[], Awaitable[Engine]]
"""Makes the engine; awaited once the sockets are bound, since it may import for long."""

_AWAY: Final = "the engine cannot be reached"
_SILENT: Final = "a worker does not answer"
_NEVER: Final = -1.0
_BOOKS_PERIOD: Final = 1.0
"""Seconds of counting that a worker's death can cost."""
_STALLED: Final = "the engine makes no progress"
_ADMITTED_PER_SEQUENCE: Final = 4
"""Requests admitted per sequence that the engine runs at once, unless set."""
_RUNNING_PER_SEQUENCE: Final = 2
"""Of these, the ones handed to the engine: more than it runs, so that it never lacks work."""


class State(Enum):
    """The life of a gateway, in order; `DEAD` can follow any but `STOPPED`."""

    STARTING = "the engine is starting"
    READY = "ready"
    LEAVING = "the server is about to shut down"
    """Work is still taken, until the load balancers have heard of it."""
    DRAINING = "the server is shutting down"
    DEAD = "the engine has died"
    STOPPED = "stopped"


class Gateway:
    """The running gateway, as the handlers see it: the only one, or one of several workers."""

    def __init__(
        self, settings: Settings, engine_factory: EngineFactory, worker: Worker = ALONE
    ) -> None:
        self.settings = settings
        self.contract = settings.rules
        self.metrics = Metrics()
        self.worker = worker
        self.siblings: Siblings | None = None
        """The other workers; None for a gateway of one process."""
        self._inherited: Figures = []
        self._heard: Callable[[], float] = lambda: 0.0
        self.access = Access(worker)
        self.admission = Admission()
        self.bodies = BodyMemory(worker.part(settings.body_memory))
        self.parsing = asyncio.Lock()
        """Held while a large body is parsed."""
        connections = worker.part(settings.max_connections)
        self.outbox = Outbox()
        self.connections = Connections(connections, self.metrics.evicted.inc)
        self.live = LiveRequests()
        self.probe = Probe(self._take_one_token)
        self.watchdog = Watchdog(self.live, settings.progress_timeout, self.probe.succeeds_within)
        self.request_stop: Callable[[], None] = lambda: None
        """Begins the graceful stop of the process; does nothing before there is one."""
        self.created = int(time.time())
        """When this gateway was made, in Unix seconds."""
        self.media = media_desk(settings, worker=worker)
        endpoint = settings.trace_endpoint
        self.tracing = None if endpoint is None else Tracing(endpoint)
        self.state = State.STARTING
        self._engine_factory = engine_factory
        self._engine: Engine | None = None
        self._info: ModelInfo | None = None
        self._generated_ids = itertools.count(1 + worker.index, worker.count)
        self._warned_priority = False
        self._passing = 0
        self._legacy_headers = legacy.headers(settings, successor=False)
        self.metrics.ready.set_function(lambda: self.obstacle is None and self.state is State.READY)
        self.metrics.stalled.set_function(lambda: self.watchdog.stalled)
        self.metrics.waiting.set_function(self._waiting)
        self.metrics.running.set_function(self._running)
        self.metrics.connections.set_function(lambda: len(self.connections))
        self.metrics.workers.set(1)
        self.metrics.worker_restarts.inc(worker.generation)
        self.metrics.body_bytes.set_function(lambda: self.bodies.in_use)

    @property
    def legacy_headers(self) -> tuple[tuple[str, str], ...]:
        """What the answers of legacy routes carry."""
        return self._legacy_headers

    @property
    def engine(self) -> Engine:
        """The engine; ServiceUnavailable before there is one."""
        if self._engine is None:
            raise self.unavailable()
        return self._engine

    @property
    def info(self) -> ModelInfo:
        """What the engine said about itself; ServiceUnavailable before it did."""
        if self._info is None:
            raise self.unavailable()
        return self._info

    @property
    def names(self) -> tuple[str, ...]:
        """The served models; none before the engine has said which."""
        return () if self._info is None else self._info.names

    async def start_engine(
        self, on_death: Callable[[str], None], *, settle: Callable[[], None] = lambda: None
    ) -> None:
        """Make and start the engine, then `settle`; afterwards the gateway is ready."""
        self._engine = await self._engine_factory()
        self._info = await self._engine.start(on_death)
        successor = self._engine.openai is not None
        self._legacy_headers = legacy.headers(self.settings, successor=successor)
        self._set_limits(self._info.max_num_seqs)
        if self.settings.mindie_metrics:
            self.metrics.show_mindie(
                MindieMetrics(self._info.names[0], load=self._told_load, waiting=self._waiting)
            )
        self.media.report(self._info.media)
        settle()
        if self.state is State.STARTING:
            self.enter(State.READY)

    def _set_limits(self, sequences: int) -> None:
        settings, admission, part = self.settings, self.admission, self.worker.part
        admission.limit = part(settings.max_requests or _ADMITTED_PER_SEQUENCE * sequences)
        running = part(settings.max_running or _RUNNING_PER_SEQUENCE * sequences)
        admission.running_limit = min(running, admission.limit)

    @contextmanager
    def passing(self) -> Iterator[None]:
        """One request that goes through to the engine's own API is under way."""
        self._passing += 1
        try:
            yield
        finally:
            self._passing -= 1

    @property
    def under_way(self) -> int:
        """Requests that a drain waits for: prepared, admitted, or passing through."""
        return self.admission.in_use + len(self.admission.preparing) + self._passing

    def _told_load(self) -> Load:
        """The engine's load for the metrics. Of several workers one tells it for all."""
        return self._engine.load() if self._engine is not None and self.worker.first else Load()

    def _running(self) -> float:
        return self._told_load().running

    def _waiting(self) -> float:
        return self.admission.waiting + self._told_load().waiting

    async def join(self, siblings: Siblings, heard: Callable[[], float] = lambda: 0.0) -> None:
        """Be one of several workers: answer the others, and ask them from now on.

        `heard` tells when this one last heard from an engine that they share.
        """
        self.siblings = siblings
        self._heard = heard
        self._inherited = inherited(siblings.own_deposit.left())
        await siblings.serve(
            {
                "stop": self._stop_here,
                "live": lambda _: len(self.live),
                "ready": lambda _: [self.hindrance, self.admission.full],
                "metrics": lambda _: [heard(), self._page()],
            }
        )

    async def _ask(
        self, question: str, value: str | None = None, *, of_ended: Any = None
    ) -> list[Any]:
        if self.siblings is None:
            return []
        return await self.siblings.ask(question, value, of_ended=of_ended)

    async def stop(self, client_id: str) -> int:
        """End every live request with this id, of any worker; returns how many there were.

        ServiceUnavailable when there was none, but a worker that may have one does not answer.
        """
        here = self._stop_here(client_id)
        there = await self._ask("stop", client_id, of_ended=0)
        stopped = here + sum(each or 0 for each in there)
        if not stopped and None in there:
            raise ServiceUnavailable(_SILENT, retry_after=RETRY_AFTER)
        return stopped

    def _stop_here(self, client_id: str) -> int:
        """The same for those of this worker, prepared ones included."""
        return self.live.stop(client_id) + self.admission.stop_preparing(client_id)

    async def count_live(self) -> int:
        """Live requests of all workers."""
        return len(self.live) + sum(there or 0 for there in await self._ask("live", of_ended=0))

    async def why_not_ready(self) -> str | None:
        """What hinders any worker, or that none has a place free; None when work can come."""
        hindrance, full = self.hindrance, self.admission.full
        for answer in await self._ask("ready"):
            there, there_full = answer or (_SILENT, True)
            hindrance, full = hindrance or there, full and there_full
        return hindrance or (OVERLOADED if full else None)

    async def metrics_page(self) -> bytes:
        """Prometheus text of the whole gateway, whichever worker is asked."""
        if self.siblings is None:
            return self.metrics.render()
        answers = await self._ask("metrics", of_ended=[])
        pages = [
            (self._heard(), self._page()),
            *map(_page_or_books, answers, self.siblings.deposits),
        ]
        stamps = [heard for heard, _ in pages]
        newest = stamps.index(max(stamps))
        return merged([page for _, page in pages], newest=newest, whole=all(answers))

    def _page(self) -> Figures:
        """This worker's figures. What was shown once is not lost, even if it dies now."""
        return [*self.leave_books(), *figures(REGISTRY)]

    def leave_books(self) -> Figures:
        """This worker's own figures, left where the others and its successor find them."""
        books = figures(self.metrics.registry) + self._inherited
        if self.siblings is not None:
            self.siblings.own_deposit.leave(books)
        return books

    async def keep_books(self) -> None:
        """Leave the books where a successor finds them, again and again."""
        while True:
            await asyncio.sleep(_BOOKS_PERIOD)
            self.leave_books()

    async def close_engine(self) -> None:
        await self.media.close()
        if self._engine is not None:
            await self._engine.close()
        if self.tracing is not None:
            await in_thread(self.tracing.close)

    def enter(self, state: State) -> None:
        """Change the state, visibly."""
        self.state = state
        log.info("state: %s", state.value)

    def check_model(self, model: str) -> None:
        """NotFound unless `model` is served; ServiceUnavailable while that is unknown."""
        if model not in self.info.names:
            raise NotFound("the model is not served here")

    @property
    def obstacle(self) -> str | None:
        """Why no work is taken now; None when it is."""
        if self.state not in (State.READY, State.LEAVING):
            return str(self.state.value)
        if self.watchdog.stalled:
            return _STALLED
        return None if self.engine.available else _AWAY

    @property
    def hindrance(self) -> str | None:
        """The obstacle, or that the gateway is about to leave; places do not count."""
        return str(self.state.value) if self.state is State.LEAVING else self.obstacle

    async def _take_one_token(self) -> None:
        await see_one_token(
            self.engine, self.info, self.new_request_id(), lambda: self.live.last_token
        )

    def check_taking_work(self) -> None:
        """ServiceUnavailable unless the gateway is ready and its engine can take work."""
        if self.obstacle is not None:
            raise self.unavailable()

    def unavailable(self) -> ServiceUnavailable:
        return ServiceUnavailable(self.obstacle or self.state.value, retry_after=RETRY_AFTER)

    def new_client_id(self) -> str:
        """The id of a request whose client gave none (contract §2)."""
        return f"endpoint_common_{next(self._generated_ids)}"

    @staticmethod
    def new_request_id() -> str:
        """An id for the engine: unique, and never the client's."""
        return uuid.uuid4().hex

    @property
    def prompt_limit(self) -> int:
        """The most prompt tokens (contract §2)."""
        info, own = self.info, self.settings.max_input_token_len
        limits = (own, info.max_model_len - 1, info.max_position_embeddings, MAX_PROMPT_TOKENS)
        return min(limit for limit in limits if limit is not None)

    def room(self, prompt_tokens: int) -> int:
        """The most new tokens after a prompt of this length (contract §3)."""
        left = self.info.max_model_len - prompt_tokens
        return min(left, self.settings.max_iter_times or left)

    def note_ignored_priority(self) -> None:
        """A priority that the engine's policy cannot honour: said once, counted always."""
        self.metrics.priority_ignored.inc()
        if not self._warned_priority:
            self._warned_priority = True
            log.warning(
                "requests carry priorities, but the engine does not schedule by priority: "
                "they are served as priority 5 (start with --scheduling-policy priority)"
            )


def _page_or_books(answer: Any, deposit: Deposit) -> Any:
    """Another worker's page and when it last heard from an engine; else what it left.

    With one that has ended its requests have ended: the books balance.
    """
    if answer:
        return answer
    worth = lasting if answer is None else inherited
    return _NEVER, worth(deposit.left())


GATEWAY: Final = web.AppKey("gateway", Gateway)
