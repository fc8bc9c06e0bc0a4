"""A bounded number of threads, however often their callers leave."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from proxy.threads import FewThreads


class Work:
    """Blocks until it may end; counts how often it was begun."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.go = threading.Event()
        self.count = 0
        self.error: Exception | None = None

    def __call__(self) -> int:
        self.count += 1
        self.begun.release()
        self.go.wait(10)
        if self.error is not None:
            raise self.error
        return 5

    async def begins(self) -> None:
        """Wait until it has begun once more."""
        assert await asyncio.to_thread(self.begun.acquire, timeout=10)


@pytest.fixture
def work() -> Iterator[Work]:
    made = Work()
    yield made
    made.go.set()


async def leave(task: asyncio.Task[int]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_who_asks_and_leaves_again_and_again_finds_no_more_threads(work: Work) -> None:
    few = FewThreads(2)
    for turn in range(50):
        task = asyncio.create_task(few.run(work))
        if turn < 2:
            await work.begins()
        else:
            # Long enough to be begun, if there were a place.
            await asyncio.sleep(0.001)
        await leave(task)
    assert work.count == 2
    last = asyncio.create_task(few.run(work))
    work.go.set()
    assert await last == 5
    assert work.count == 3


async def test_a_thread_that_takes_too_long_is_waited_for_by_the_next_alone(work: Work) -> None:
    few = FewThreads(1)
    with pytest.raises(TimeoutError):
        await few.run(work, 0.01)
    # Waiting for the place does not count.
    following = asyncio.create_task(few.run(lambda: 7, 0.05))
    await asyncio.sleep(0.1)
    assert not following.done()
    work.go.set()
    assert await following == 7


async def test_errors_reach_the_caller_and_nobody_else(work: Work) -> None:
    few, strays = FewThreads(1), list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: strays.append(context))
    with pytest.raises(ZeroDivisionError):
        await few.run(lambda: 1 // 0)
    work.error = ValueError()
    left = asyncio.create_task(few.run(work))
    await work.begins()
    await leave(left)
    work.go.set()
    assert await few.run(lambda: 7) == 7
    assert strays == []
