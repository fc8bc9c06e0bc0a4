"""Long blocking work beside the event loop, in daemon threads.

An executor's threads are joined when the interpreter ends, which would make a
process that is told to stop wait for a model to load.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_thread(work: Callable[[], T]) -> T:
    """Run `work` in a thread of its own; SystemExit in it becomes an ordinary error."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def resolve(action: Callable[[], None]) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(lambda: None if done.done() else action())

    def body() -> None:
        try:
            result = work()
        except SystemExit as error:
            wrapped = RuntimeError(f"exit {error.code}")
            resolve(lambda: done.set_exception(wrapped))
        except BaseException as error:
            caught = error
            resolve(lambda: done.set_exception(caught))
        else:
            resolve(lambda: done.set_result(result))

    threading.Thread(target=body, daemon=True, name=getattr(work, "__name__", "work")).start()
    return await done


async def joined(work: Callable[[], T]) -> T:
    """Run `work` in a thread and wait for its end, even when cancelled meanwhile.

    For work on something that the caller frees afterwards: no thread may still
    be writing to a file that is closed.
    """
    task = asyncio.ensure_future(in_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()
        raise


class FewThreads:
    """A small number of threads at a time.

    One whose caller has left, or has waited long enough, keeps its place until it ends:
    whoever asks and leaves again and again finds no more of them.
    """

    def __init__(self, most: int) -> None:
        self._places = asyncio.Semaphore(most)

    async def run(self, work: Callable[[], T], seconds: float | None = None) -> T:
        """Run `work` in a thread as soon as there is a place.

        TimeoutError when it then takes longer than `seconds`.
        """
        await self._places.acquire()
        task = asyncio.ensure_future(in_thread(work))
        task.add_done_callback(self._ended)
        async with asyncio.timeout(seconds):
            return await asyncio.shield(task)

    def _ended(self, task: asyncio.Future[T]) -> None:
        self._places.release()
        if not task.cancelled():
            # It may be that nobody waits for it any more.
            task.exception()
