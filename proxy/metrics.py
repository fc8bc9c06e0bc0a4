"""The gateway's own figures, and what the process exports with them.

Labels are bounded: a route comes from the table of routes, an outcome and an
error type from the code. Each gateway has a registry of its own; vLLM keeps its
figures in the process's default registry, and `/metrics` shows both.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from enum import StrEnum
from http import HTTPStatus
from types import TracebackType
from typing import Self

from prometheus_client import (
    REGISTRY,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)

from proxy.departure import ClientGone
from proxy.mindie_metrics import MindieMetrics
from translators.errors import GatewayError
from translators.tokens import FinishReason, Token

CONTENT_TYPE = "text/plain; charset=utf-8"
_TOKEN_BUCKETS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1, 2.5)
_LATENCY_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class Outcome(StrEnum):
    """How a received request ended: exactly one for each."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    REFUSED = "refused"


class Phase(StrEnum):
    """How far a request had come."""

    REQUEST = "request"
    """It was being read and checked."""
    QUEUE = "queue"
    """It waited for its turn, here or at the engine's door."""
    PREFILL = "prefill"
    """The engine had it, without a token so far: in vLLM's own queue, which tells
    only with the first token that it has left it, or in its prefill."""
    DECODE = "decode"


class Metrics:
    """All metrics of one gateway."""

    def __init__(self) -> None:
        self.mindie: MindieMetrics | None = None
        """MindIE's own names; see `show_mindie`."""
        self.registry = registry = CollectorRegistry()
        self.received = Counter(
            "mindie_gateway_requests_received",
            "Requests whose handling began, by route.",
            ["route"],
            registry=registry,
        )
        self.finished = Counter(
            "mindie_gateway_requests_finished",
            "Ended requests by route and outcome; the outcomes add up to the received ones.",
            ["route", "outcome"],
            registry=registry,
        )
        self.cancelled = Counter(
            "mindie_gateway_requests_cancelled",
            "Requests whose client left, by phase: request, queue, prefill, decode.",
            ["phase"],
            registry=registry,
        )
        self.errors = Counter(
            "mindie_gateway_errors",
            "Answers that are errors, by route, status and error type.",
            ["route", "status", "error_type"],
            registry=registry,
        )
        self.in_flight = Gauge(
            "mindie_gateway_requests_in_flight",
            "Requests being handled now, by route.",
            ["route"],
            registry=registry,
        )
        self.running = Gauge(
            "mindie_gateway_requests_running",
            "Requests that the engine's scheduler runs.",
            registry=registry,
        )
        self.waiting = Gauge(
            "mindie_gateway_requests_waiting",
            "Admitted requests that wait, in the gateway or in the engine; autoscalers read it.",
            registry=registry,
        )
        self.prompt_tokens = Counter(
            "mindie_gateway_prompt_tokens",
            "Prompt tokens of requests that the engine accepted.",
            registry=registry,
        )
        self.generated_tokens = Counter(
            "mindie_gateway_generated_tokens",
            "Generated tokens that were handed to clients.",
            registry=registry,
        )
        self.priority_ignored = Counter(
            "mindie_gateway_priority_ignored",
            "Requests with a priority other than 5 while the engine does not schedule by priority.",
            registry=registry,
        )
        self.legacy = Counter(
            "mindie_gateway_legacy_requests",
            "Requests to legacy routes, by route and client: its API key, else its kind.",
            ["route", "client"],
            registry=registry,
        )
        self.first_token = Histogram(
            "mindie_gateway_time_to_first_token_seconds",
            "From the start of handling to the first token in the gateway.",
            ["route"],
            buckets=_LATENCY_BUCKETS,
            registry=registry,
        )
        self.token_time = Histogram(
            "mindie_gateway_time_per_output_token_seconds",
            "Mean time between the tokens of a request, observed when it ends.",
            ["route"],
            buckets=_TOKEN_BUCKETS,
            registry=registry,
        )
        self.duration = Histogram(
            "mindie_gateway_request_duration_seconds",
            "From the start of handling to the end of the answer.",
            ["route"],
            buckets=_LATENCY_BUCKETS,
            registry=registry,
        )
        self.stalled = Gauge(
            "mindie_gateway_engine_stalled",
            "1 while the engine has work and makes no token for longer than progress_timeout.",
            registry=registry,
        )
        self.connections = Gauge(
            "mindie_gateway_connections",
            "Open connections.",
            registry=registry,
        )
        self.evicted = Counter(
            "mindie_gateway_connections_evicted",
            "Connections closed to make room for others, while they waited for their client.",
            registry=registry,
        )
        self.body_bytes = Gauge(
            "mindie_gateway_body_bytes",
            "Bytes of request bodies held in memory.",
            registry=registry,
        )
        self.access_refused = Counter(
            "mindie_gateway_access_refused",
            "Requests refused for their API key, by status: 401, 403, 429.",
            ["status"],
            registry=registry,
        )
        self.reload_failures = Counter(
            "mindie_gateway_reload_failures",
            "Keys or certificates that changed but could not be read; the old ones are in force.",
            ["what"],
            registry=registry,
        )
        self.workers = Gauge(
            "mindie_gateway_workers",
            "Processes that serve and have answered for this page.",
            registry=registry,
        )
        self.worker_restarts = Counter(
            "mindie_gateway_worker_restarts",
            "Workers that died and were started anew.",
            registry=registry,
        )
        self.ready = Gauge(
            "mindie_gateway_ready",
            "1 when the engine can take work, else 0.",
            registry=registry,
        )

    def show_mindie(self, books: MindieMetrics) -> None:
        """Keep and show MindIE's own names as well."""
        self.mindie = books
        self.registry.register(books)

    def render(self) -> bytes:
        """Prometheus text of this gateway and of the process's default registry."""
        return generate_latest(self.registry) + generate_latest(REGISTRY)

    def account(self, route: str) -> Account:
        """Count one request: received at the start of a block, one outcome at its end."""
        return Account(self, route)


class Account:
    """The books of one request. Without any word it counts as cancelled."""

    __slots__ = (
        "_metrics",
        "_mindie",
        "_route",
        "client_id",
        "engine_id",
        "error_type",
        "finish_reason",
        "first_token_after",
        "generated_tokens",
        "handed_over",
        "model",
        "outcome",
        "prompt_tokens",
        "queued",
        "started",
        "trace",
    )

    def __init__(self, metrics: Metrics, route: str) -> None:
        self._metrics = metrics
        self._route = route
        self._mindie: MindieMetrics | None = None
        self.prompt_tokens: int | None = None
        self.generated_tokens: int | None = None
        self.client_id: str | None = None
        self.engine_id: str | None = None
        self.model: str | None = None
        self.queued: float | None = None
        """Seconds that it waited, in the gateway and in the engine."""
        self.first_token_after: float | None = None
        """Seconds from the start of handling to the first token."""
        self.finish_reason: str | None = None
        self.error_type: str | None = None
        self.handed_over = False
        """Whether the engine has been asked."""
        self.trace: Mapping[str, str] = {}
        """Headers of the trace that the engine's part belongs to."""
        self.outcome = Outcome.CANCELLED
        self.started = time.monotonic()

    def __enter__(self) -> Self:
        self._metrics.received.labels(self._route).inc()
        self._metrics.in_flight.labels(self._route).inc()
        return self

    def __exit__(
        self, kind: object, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(failure, GatewayError):
            self.refused_or_failed(failure)
        # A client that is gone cancels it, unless its last frame was out already.
        elif isinstance(failure, Exception) and not isinstance(failure, ClientGone):
            self.outcome = Outcome.FAILED
        self._close()

    @property
    def elapsed(self) -> float:
        """Seconds since the start of handling."""
        return time.monotonic() - self.started

    def began(self) -> None:
        """The request is one for a served model: from here on MindIE's names count it."""
        self._mindie = self._metrics.mindie
        if self._mindie is not None:
            self._mindie.received()

    @property
    def phase(self) -> Phase:
        """How far the request has come."""
        if self.first_token_after is not None:
            return Phase.DECODE
        if self.handed_over:
            return Phase.PREFILL
        return Phase.REQUEST if self.client_id is None else Phase.QUEUE

    def checked(self, client_id: str, engine_id: str, model: str) -> None:
        """Nothing is wrong with the request; it waits for its turn."""
        self.client_id, self.engine_id, self.model = client_id, engine_id, model

    def accepted(self, prompt_tokens: int) -> None:
        """The engine has taken the request."""
        self.prompt_tokens = prompt_tokens
        self._metrics.prompt_tokens.inc(prompt_tokens)
        if self._mindie is not None:
            self._mindie.accepted(prompt_tokens)

    @property
    def observer(self) -> Callable[[Token], None] | None:
        """What wants to see each token as it comes; None while nobody does."""
        return None if self._mindie is None else _later_tokens(self._mindie)

    def first_token(self, waited: float) -> None:
        """The first token has arrived here, after `waited` seconds in the engine's queue."""
        elapsed = self.first_token_after = self.elapsed
        self.queued = (self.queued or 0.0) + waited
        self._metrics.first_token.labels(self._route).observe(elapsed)
        if self._mindie is not None:
            self._mindie.first_token(self.prompt_tokens or 0, elapsed)

    def generated(self, tokens: int) -> None:
        """Tokens that went out; called once, at the end."""
        self.generated_tokens = tokens
        if self.first_token_after is not None and tokens > 1:
            between = (self.elapsed - self.first_token_after) / (tokens - 1)
            self._metrics.token_time.labels(self._route).observe(between)
        self._metrics.generated_tokens.inc(tokens)
        if self._mindie is not None:
            self._mindie.generated(tokens)

    def _close(self) -> None:
        metrics = self._metrics
        metrics.in_flight.labels(self._route).dec()
        metrics.finished.labels(self._route, self.outcome).inc()
        if self.outcome is Outcome.CANCELLED:
            metrics.cancelled.labels(self.phase).inc()
        metrics.duration.labels(self._route).observe(self.elapsed)
        if self._mindie is not None:
            succeeded = self.outcome is Outcome.SUCCEEDED
            self._mindie.ended(succeeded=succeeded, seconds=self.elapsed)

    def ended_by(self, reason: FinishReason | None) -> None:
        """What ended the tokens; None when they did not end by themselves."""
        self.finish_reason = None if reason is None else reason.value

    def succeeded(self) -> None:
        self.outcome = Outcome.SUCCEEDED

    def passed_on(self, status: int) -> None:
        """An answer of the engine's own API went through whole; its status says how it ended."""
        if status < HTTPStatus.BAD_REQUEST:
            self.outcome = Outcome.SUCCEEDED
        elif status < HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.SERVICE_UNAVAILABLE:
            self.outcome = Outcome.REFUSED
        else:
            self.outcome = Outcome.FAILED

    def refused_or_failed(self, error: GatewayError) -> None:
        """An error before the first byte. What the engine has taken is not refused any more."""
        refused = self.prompt_tokens is None and error.refuses
        self.outcome = Outcome.REFUSED if refused else Outcome.FAILED
        self._count(error)

    def broken(self, error: GatewayError) -> None:
        """A stream that failed after its first byte."""
        self.outcome = Outcome.FAILED
        self._count(error)

    def _count(self, error: GatewayError) -> None:
        self.error_type = error.error_type
        self._metrics.errors.labels(self._route, error.status, error.error_type).inc()


def _later_tokens(mindie: MindieMetrics) -> Callable[[Token], None]:
    """Times between tokens: the first one has none before it."""
    first = True

    def observe(token: Token) -> None:
        nonlocal first
        if not first:
            mindie.next_token(token.latency)
        first = False

    return observe
