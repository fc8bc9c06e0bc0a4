"""How many requests may be under way: some run, some wait their turn, the rest is refused.

`running_limit` requests are with the engine at once. The next ones wait here, the
most urgent first and then the oldest, up to `limit` requests altogether; beyond
that a request is refused at once and never hangs.
"""

from __future__ import annotations

import asyncio
from typing import Self

from translators.errors import GatewayError, Overloaded

RETRY_AFTER = 1
"""Seconds that a refused client is asked to wait."""
OVERLOADED = "too many requests at once"


class Place:
    """One request's place for a block. While it waits it can be stopped and broken, as a stream."""

    __slots__ = ("_admission", "_error", "_turn", "priority", "running")

    owed = False
    """The engine does not know of it yet."""
    last_token = 0.0

    def __init__(self, admission: Admission, priority: int) -> None:
        self._admission = admission
        self.priority = priority
        self.running = False
        """Whether the engine may have the request; stays so until the place is given up."""
        self._turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._error: GatewayError | None = None

    def __enter__(self) -> Self:
        self._admission.enter(self)
        return self

    def __exit__(self, *failure: object) -> None:
        self._admission.leave(self)

    @property
    def waits(self) -> bool:
        return not self._turn.done()

    async def turn(self) -> bool:
        """Wait for the turn: True when it has come, False when the request was stopped.

        Raises the error given to `fail`.
        """
        came = await self._turn
        if self._error is not None:
            raise self._error
        return came

    def begin(self) -> None:
        """It is this request's turn."""
        self.running = True
        self._turn.set_result(True)

    def stop(self) -> None:
        """End the wait normally (stopInfer)."""
        if self.waits:
            self._turn.set_result(False)

    def fail(self, error: GatewayError) -> None:
        """End the wait with an error."""
        if self.waits:
            self._error = error
            self._turn.set_result(False)

    def close(self) -> None:
        """Nobody waits any more."""
        self._turn.cancel()


class Preparation:
    """A request for the length of a block in which its prompt is made: it has no place yet.

    It counts as if it had one, so that it gets one afterwards and a drain waits for it.
    `client_id` is the id that its client has given it, if any.
    """

    __slots__ = ("_admission", "_ended", "_error", "_task", "client_id", "stopped")

    def __init__(self, admission: Admission, client_id: str | None) -> None:
        self._admission = admission
        self._ended = False
        self._error: GatewayError | None = None
        self.client_id = client_id
        self.stopped = False
        """Whether the block was left by `stop`, before its end."""

    def __enter__(self) -> Self:
        self._admission.check_room()
        self._task = asyncio.current_task()
        self._admission.preparing.add(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, *failure: object) -> bool:
        self._admission.preparing.discard(self)
        if not self._ended or kind is not asyncio.CancelledError:
            return False
        assert self._task is not None
        if self._task.uncancel():
            # Its client has left as well.
            return False
        if self._error is not None:
            raise self._error from None
        self.stopped = True
        return True

    def stop(self) -> None:
        """Leave the block as if it were done, whatever it waits for (stopInfer)."""
        if not self._ended and self._task is not None:
            self._ended = True
            self._task.cancel()

    def fail(self, error: GatewayError) -> None:
        """End the block with an error, whatever it waits for."""
        if not self._ended:
            self._error = error
        self.stop()


class Admission:
    """The places. A limit of None admits everything."""

    def __init__(self) -> None:
        self.limit: int | None = None
        """Requests under way at most, running and waiting."""
        self.running_limit: int | None = None
        self.in_use = 0
        self.running = 0
        self.preparing: set[Preparation] = set()
        self._queues: dict[int, dict[Place, None]] = {}

    @property
    def waiting(self) -> int:
        """Requests that wait for their turn here."""
        return self.in_use - self.running

    @property
    def full(self) -> bool:
        """Whether the next request would be refused."""
        return self.limit is not None and self.in_use + len(self.preparing) >= self.limit

    def check_room(self) -> None:
        """ServiceUnavailable when a further request would be refused."""
        if self.full:
            raise Overloaded(f"{OVERLOADED}, at most {self.limit}", retry_after=RETRY_AFTER)

    def preparation(self, client_id: str | None = None) -> Preparation:
        """The time before a place. Entering it raises ServiceUnavailable when there is no room."""
        return Preparation(self, client_id)

    def stop_preparing(self, client_id: str) -> int:
        """Stop every request with this id that is prepared; returns how many there were."""
        stopped = [each for each in self.preparing if each.client_id == client_id]
        for preparation in stopped:
            preparation.stop()
        return len(stopped)

    def place(self, priority: int = 0) -> Place:
        """One place, running or waiting; lower priorities have their turn earlier.

        Entering it raises ServiceUnavailable when there is none.
        """
        return Place(self, priority)

    def enter(self, place: Place) -> None:
        """Take `place`: begin at once, or wait."""
        self.check_room()
        self.in_use += 1
        if self.running_limit is None or self.running < self.running_limit:
            self.running += 1
            place.begin()
        else:
            self._queues.setdefault(place.priority, {})[place] = None

    def leave(self, place: Place) -> None:
        """Give `place` up; the next one has its turn."""
        self.in_use -= 1
        self._queues.get(place.priority, {}).pop(place, None)
        place.close()
        if place.running:
            self._pass_on()

    def refuse_waiting(self, error: GatewayError) -> None:
        """End every wait with `error`: no turn will come. So do requests that are prepared."""
        for preparation in self.preparing:
            preparation.fail(error)
        for queue in self._queues.values():
            for place in queue:
                place.fail(error)

    def _pass_on(self) -> None:
        """Give the place of a request that has ended to the next one that still waits."""
        for priority in sorted(self._queues):
            queue = self._queues[priority]
            while queue:
                place = next(iter(queue))
                del queue[place]
                if place.waits:
                    place.begin()
                    return
        self.running -= 1
