"""The open connections: a bound on their number, and whose turn it is to speak.

A connection either waits for its client, for a head or a body, or is answering.
When there are too many, the one that has waited longest for its client makes
room: a slow or idle client never keeps an active one out, and an answer is never
cut off for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol


class Connection(Protocol):
    """What the bound asks of a connection."""

    def give_way(self) -> None:
        """Close at once: the client has sent nothing whole in all this time."""


class Connections:
    """All connections, `limit` at once; `on_give_way` is called for each that makes room."""

    def __init__(self, limit: int, on_give_way: Callable[[], None]) -> None:
        self.limit = limit
        self._on_give_way = on_give_way
        self._answering: set[Connection] = set()
        # In the order in which they began to wait.
        self._waiting: dict[Connection, None] = {}

    def __len__(self) -> int:
        return len(self._answering) + len(self._waiting)

    def opened(self, connection: Connection) -> bool:
        """Count a new one; False when there is no room, because all others are answering."""
        if len(self) >= self.limit and not self._make_room():
            return False
        self._waiting[connection] = None
        return True

    def answers(self, connection: Connection) -> None:
        """It has a whole request, or its body, and works on the answer."""
        if self._waiting.pop(connection, self) is None:
            self._answering.add(connection)

    def waits(self, connection: Connection) -> None:
        """It waits for its client again."""
        if connection in self._answering:
            self._answering.remove(connection)
            self._waiting[connection] = None

    def closed(self, connection: Connection) -> None:
        self._waiting.pop(connection, None)
        self._answering.discard(connection)

    def _make_room(self) -> bool:
        oldest = next(iter(self._waiting), None)
        if oldest is None:
            return False
        del self._waiting[oldest]
        self._on_give_way()
        oldest.give_way()
        return True


class Deadline:
    """Calls `action` once, `seconds` after it was first started, unless cancelled before."""

    __slots__ = ("_action", "_seconds", "_timer")

    def __init__(self, seconds: float, action: Callable[[], None]) -> None:
        self._seconds = seconds
        self._action = action
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Let the time run. Already running, it runs on: nothing extends it."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._action)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
