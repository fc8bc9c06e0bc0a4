"""The process that has the engines for several workers, with engines that obey the test."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable

import pytest

from proxy.crew import ASK_STOP, STOP
from proxy.engine_host import EngineHost, Engines
from proxy.exit_codes import EXIT_ENGINE, EXIT_OK, EXIT_USAGE
from proxy.settings import SettingsError

WITHIN = 40.0


class ObedientEngines:
    def __init__(self) -> None:
        self.started = threading.Event()
        self.dead = threading.Event()
        self.closed = False

    def start(self) -> Engines:
        self.started.set()
        return self

    def wait(self) -> None:
        self.dead.wait()

    def close(self) -> None:
        self.closed = True
        self.dead.set()


class Hosted:
    """A host under test: the parent's end of its line, and a worker's."""

    def __init__(self, start: Callable[[], Engines]) -> None:
        self.parent, its_parent = socket.socketpair()
        self.worker, its_worker = socket.socketpair()
        self.parent.setblocking(False)
        self.worker.setblocking(False)
        self.orphaned = asyncio.Event()
        host = EngineHost(start, its_parent, [its_worker])
        self.running = asyncio.create_task(host.run(self.orphaned.set))

    async def said(self) -> bytes:
        async with asyncio.timeout(WITHIN):
            return await asyncio.get_running_loop().sock_recv(self.parent, 8)

    async def code(self) -> int:
        async with asyncio.timeout(WITHIN):
            return await self.running


async def test_it_runs_until_its_parent_says_stop() -> None:
    engines = ObedientEngines()
    hosted = Hosted(engines.start)
    await asyncio.to_thread(engines.started.wait)
    hosted.parent.send(STOP)
    assert await hosted.code() == EXIT_OK
    assert engines.closed


@pytest.mark.logs_errors
async def test_an_engines_death_ends_the_lines_and_the_host() -> None:
    engines = ObedientEngines()
    hosted = Hosted(engines.start)
    engines.dead.set()
    async with asyncio.timeout(WITHIN):
        assert await asyncio.get_running_loop().sock_recv(hosted.worker, 8) == b""
    assert await hosted.code() == EXIT_ENGINE
    assert engines.closed


@pytest.mark.logs_errors
@pytest.mark.parametrize(
    ("error", "code"), [(SettingsError("no such option"), EXIT_USAGE), (OSError(), EXIT_ENGINE)]
)
async def test_engines_that_do_not_start_stop_all_in_good_order(
    error: Exception, code: int
) -> None:
    def start() -> Engines:
        raise error

    hosted = Hosted(start)
    assert await hosted.said() == ASK_STOP
    # The workers are still told nothing: they stop because the parent says so.
    with pytest.raises(BlockingIOError):
        hosted.worker.recv(1)
    hosted.parent.send(STOP)
    assert await hosted.code() == code


async def test_a_stop_while_they_start_does_not_wait_for_them() -> None:
    never = threading.Event()

    def start() -> Engines:
        never.wait()
        raise AssertionError

    hosted = Hosted(start)
    hosted.parent.send(STOP)
    assert await hosted.code() == EXIT_OK
    never.set()


async def test_without_its_parent_it_ends() -> None:
    engines = ObedientEngines()
    hosted = Hosted(engines.start)
    hosted.parent.close()
    async with asyncio.timeout(WITHIN):
        await hosted.orphaned.wait()
    hosted.running.cancel()
    engines.dead.set()
