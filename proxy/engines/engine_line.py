"""What connects a worker with the process that has the engines (`--workers` without upstream).

The line tells the worker where to meet the engines, and by its end that they are
gone. The board is memory in which all workers see what the schedulers last said:
each report of an engine reaches only one of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import orjson

from proxy.crew import Worker
from proxy.engines.base import Load, total
from proxy.engines.figures import SchedulerFigures, SchedulerReport

MAX_ENGINES: Final = 64
_ROW: Final = struct.Struct("<7d")
"""When it was written, then the fields of `Load`."""
_HEAD: Final = 8


class Board:
    """One row for each worker and engine. Only its own worker writes a row."""

    def __init__(self, workers: int) -> None:
        self._memory = mmap.mmap(-1, _HEAD + workers * MAX_ENGINES * _ROW.size)
        self._workers = workers

    @property
    def engines(self) -> int:
        """How many have reported; their indexes are smaller."""
        return self._memory[0]

    def write(self, worker: int, engine: int, at: float, load: Load) -> None:
        """Put down what this worker knows of an engine since `at`, in monotonic seconds."""
        self._memory[0] = max(self._memory[0], engine + 1)
        _ROW.pack_into(
            self._memory,
            self._offset(worker, engine),
            at,
            load.running,
            load.waiting,
            load.kv_cache_usage,
            load.preemptions or 0,
            load.prefix_queries or 0,
            load.prefix_hits or 0,
        )

    def read(self, engine: int) -> Load:
        """The newest state of an engine, and the sums of what each worker has counted."""
        rows = [
            _ROW.unpack_from(self._memory, self._offset(worker, engine))
            for worker in range(self._workers)
        ]
        _, running, waiting, usage, *_ = max(rows)
        preemptions, queries, hits = (int(sum(row[field] for row in rows)) for field in (4, 5, 6))
        return Load(int(running), int(waiting), usage, preemptions, queries, hits)

    def heard(self, worker: int) -> float:
        """When this worker last heard of any engine, monotonic seconds; 0 for never."""
        rows = (self._offset(worker, engine) for engine in range(self.engines))
        return max((_ROW.unpack_from(self._memory, row)[0] for row in rows), default=0.0)

    def _offset(self, worker: int, engine: int) -> int:
        return _HEAD + (worker * MAX_ENGINES + engine) * _ROW.size


class SharedFigures(SchedulerFigures):
    """The figures of all workers together, as one of them sees them."""

    def __init__(self, board: Board, worker: Worker) -> None:
        super().__init__()
        self._board = board
        self._index = worker.index
        self._heard: dict[int, float] = {}

    def scheduled(self, engine: int, report: SchedulerReport) -> None:
        super().scheduled(engine, report)
        self._heard[engine] = time.monotonic()
        self._write(engine)

    def preempted(self, engine: int, requests: int) -> None:
        super().preempted(engine, requests)
        if requests:
            self._write(engine)

    def _write(self, engine: int) -> None:
        self._board.write(self._index, engine, self._heard.get(engine, 0.0), self._own(engine))

    def of(self, engine: int) -> Load:
        return self._board.read(engine)

    def load(self) -> Load:
        return total(self._board.read(engine) for engine in range(self._board.engines))


class EngineLine:
    """A worker's end of the line."""

    def __init__(self, sock: socket.socket, worker: Worker, board: Board) -> None:
        self.worker = worker
        self.board = board
        self._socket = sock
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    def heard(self) -> float:
        """When this worker last heard from an engine, monotonic seconds; 0 for never."""
        return self.board.heard(self.worker.index)

    async def addresses(self) -> Mapping[str, Any]:
        """Where this worker meets the engines; waits until they are being started."""
        # The writer is held because its end would close the connection.
        self._reader, self._writer = await asyncio.open_unix_connection(sock=self._socket)
        line = await self._reader.readline()
        if not line:
            # The parent knows why and says what to do.
            await asyncio.Event().wait()
        found: Mapping[str, Any] = orjson.loads(line)
        return found

    async def end(self) -> None:
        """Wait until the process with the engines has ended."""
        assert self._reader is not None
        await self._reader.read()


class Shared(NamedTuple):
    """Engines of another process, for one of its clients."""

    line: EngineLine
    addresses: Mapping[str, Any]
    """As vLLM wants them from a client of its engines."""


def tell(lines: Sequence[socket.socket], addresses: Sequence[Mapping[str, Any]]) -> None:
    """Tell each worker its addresses, at the other ends of their lines."""
    for line, each in zip(lines, addresses, strict=True):
        # A worker that has ended already needs none.
        with contextlib.suppress(OSError):
            line.sendall(orjson.dumps(each) + b"\n")
