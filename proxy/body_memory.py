"""A bound on the bytes of request bodies that are held in memory, over all requests.

The limit of one body does not help against many at once. What a request has sent
counts until it ends, because its text lives on with it.
"""

from __future__ import annotations

from typing import Final, Self

from aiohttp import web

from proxy.admission import RETRY_AFTER
from translators.errors import ServiceUnavailable


class BodyMemory:
    """The bytes in use; `limit` at most."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.in_use = 0

    def share(self) -> Share:
        """One request's share."""
        return Share(self)


class Share:
    """What one request holds, given back at the end of the block."""

    __slots__ = ("_memory", "size")

    def __init__(self, memory: BodyMemory) -> None:
        self._memory = memory
        self.size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self._memory.in_use -= self.size

    def grow(self, size: int) -> None:
        """Hold `size` more bytes. Raises ServiceUnavailable when they are not to be had."""
        memory = self._memory
        if memory.in_use + size > memory.limit:
            raise ServiceUnavailable(
                "too many large request bodies at once", retry_after=RETRY_AFTER
            )
        memory.in_use += size
        self.size += size


SHARE: Final = web.RequestKey("share", Share)
"""Where the routes' entrance leaves the request's share."""
