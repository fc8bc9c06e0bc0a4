"""How many requests may be under way at once; beyond it, 503 at once and never a hang."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from translators.errors import ServiceUnavailable

RETRY_AFTER = 1
"""Seconds that a refused client is asked to wait."""


class Admission:
    """Counts the requests under way. `limit` None admits everything."""

    def __init__(self) -> None:
        self.limit: int | None = None
        self.in_use = 0

    @contextmanager
    def slot(self) -> Iterator[None]:
        """Hold one place. Raises ServiceUnavailable when there is none."""
        if self.limit is not None and self.in_use >= self.limit:
            raise ServiceUnavailable(
                f"too many requests at once, at most {self.limit}", retry_after=RETRY_AFTER
            )
        self.in_use += 1
        try:
            yield
        finally:
            self.in_use -= 1
