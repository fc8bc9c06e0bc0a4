"""One engine with two clients, as two workers are, both in this process."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from prometheus_client.registry import Collector, CollectorRegistry

from proxy.crew import Worker
from proxy.engines.base import ModelInfo
from proxy.engines.embedded import EngineProcesses, parse_engine_args
from proxy.engines.engine_line import Board, EngineLine, Shared, tell
from tests.e2e.engines import SharedEngine

CLIENTS = 2


@dataclass(frozen=True)
class SharedPair:
    """Both clients; `info` is what the second one says."""

    first: SharedEngine
    second: SharedEngine
    info: ModelInfo

    def held(self) -> int:
        """Requests that either client still knows."""
        return self.first.unfinished + self.second.unfinished


@contextmanager
def one_registry_for_two() -> Iterator[None]:
    """Let both register vLLM's metrics. As processes of their own they never meet."""
    register = CollectorRegistry.register

    def once(self: CollectorRegistry, collector: Collector) -> None:
        with suppress(ValueError):  # the other one has registered the same
            register(self, collector)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CollectorRegistry, "register", once)
        yield


@asynccontextmanager
async def shared_pair(model: Path, *flags: str) -> AsyncIterator[SharedPair]:
    """Start an engine for two, and both."""
    pairs = [socket.socketpair() for _ in range(CLIENTS)]
    board = Board(CLIENTS)
    lines = [EngineLine(its, Worker(index, CLIENTS), board) for index, (_, its) in enumerate(pairs)]
    told = partial(tell, [hosts for hosts, _ in pairs])

    def launch() -> EngineProcesses:
        return EngineProcesses(parse_engine_args(str(model), list(flags)), CLIENTS, told)

    async def client(line: EngineLine) -> tuple[SharedEngine, ModelInfo]:
        shared = Shared(line, await line.addresses())
        engine = SharedEngine(parse_engine_args(str(model), list(flags)), shared)
        return engine, await engine.start(lambda reason: None)

    with one_registry_for_two():
        processes, first, second = await asyncio.gather(
            asyncio.to_thread(launch), *(client(line) for line in lines)
        )
    try:
        yield SharedPair(first[0], second[0], second[1])
    finally:
        for engine, _ in (first, second):
            await engine.close()
        await asyncio.to_thread(processes.close)
