"""Limits of one API key: how often, and how many requests at once."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from translators.errors import TooManyRequests


@dataclass(frozen=True, slots=True)
class Limits:
    """What a key may do; None is without limit. `rate` is requests per minute."""

    rate: float | None = None
    burst: int | None = None
    concurrency: int | None = None


class Allowance:
    """What is left of the limits: a token bucket, and a count of requests under way."""

    def __init__(self, limits: Limits, now: float) -> None:
        self.limits = limits
        self._per_second = (limits.rate or 0.0) / 60
        self._burst = float(limits.burst or max(self._per_second, 1.0))
        self._tokens = self._burst
        self._at = now
        self._in_use = 0

    @contextmanager
    def taken(self, now: float) -> Iterator[None]:
        """Take one request's share. Raises TooManyRequests; `now` is monotonic seconds."""
        limit = self.limits.concurrency
        if limit is not None and self._in_use >= limit:
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
