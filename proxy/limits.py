"""Limits of one API key: how often, and how many requests at once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from proxy.crew import ALONE, Worker
from translators.errors import TooManyRequests


@dataclass(frozen=True, slots=True)
class Limits:
    """What a key may do; None is without limit. `rate` is requests per minute."""

    rate: float | None = None
    burst: int | None = None
    concurrency: int | None = None


class Allowance:
    """What is left of a worker's part of the limits: a token bucket, a count of requests."""

    def __init__(self, limits: Limits, now: float, worker: Worker = ALONE) -> None:
        self.limits = limits
        whole = limits.concurrency
        self._concurrency = None if whole is None else worker.part(whole)
        self._per_second = (limits.rate or 0.0) / 60 / worker.count
        burst = None if limits.burst is None else worker.part(limits.burst)
        self._burst = float(burst or max(self._per_second, 1.0))
        self._tokens = self._burst
        self._at = now
        self._in_use = 0

    @contextmanager
    def taken(self, now: float) -> Iterator[None]:
        """Take one request's share. Raises TooManyRequests; `now` is monotonic seconds."""
        if self._concurrency is not None and self._in_use >= self._concurrency:
            limit = self.limits.concurrency
            raise TooManyRequests(f"this key may have {limit} requests at once", retry_after=1)
        if self.limits.rate is not None:
            self._take_token(now)
        self._in_use += 1
        try:
            yield
        finally:
            self._in_use -= 1

    def _take_token(self, now: float) -> None:
        earned = (now - self._at) * self._per_second
        self._tokens, self._at = min(self._tokens + earned, self._burst), now
        if self._tokens < 1:
            wait = math.ceil((1 - self._tokens) / self._per_second)
            raise TooManyRequests(
                f"this key may send {self.limits.rate:g} requests a minute", retry_after=wait
            )
        self._tokens -= 1
