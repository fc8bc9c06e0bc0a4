"""One of several processes that serve together (`--workers`), and what ties it to the others.

`Worker` says which one it is and what its part of a limit is. `Siblings` is how
workers ask each other, `Crew` holds all ties of one worker. Their parent, who
starts them, is in `workers`; a gateway of one process has none of this.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import mmap
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import orjson

log = logging.getLogger(__name__)

ASK_WITHIN: Final = 2.0
"""Seconds that a worker gets to answer another."""
_QUESTION: Final = 64 * 1024
"""Bytes of a question at most; the longest holds a client's id."""
_BACKLOG: Final = 128
_SECRET: Final = 32
_HALF: Final = 1024 * 1024
"""Bytes of a deposit at most. Memory that nobody writes to takes no room."""
_LENGTH: Final = 4

STOP: Final = b"T"
"""The parent's word: begin the graceful stop; again: end at once."""
RELOAD: Final = b"H"
"""The parent's word: read keys and certificates again."""
ASK_STOP: Final = b"S"
"""A worker's word: stop all of us (GET /stopService)."""

Answer = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Worker:
    """Which of the workers a process is. `generation` counts those before it in its place."""

    index: int = 0
    count: int = 1
    generation: int = 0

    @property
    def first(self) -> bool:
        """The first one tells what is the same for all, such as the engine's load."""
        return self.index == 0

    def part(self, whole: int) -> int:
        """Its part of a limit. All parts add up to the whole; none is 0."""
        return max(whole // self.count + (self.index < whole % self.count), 1)


ALONE: Final = Worker()


class Deposit:
    """Shared memory in which a worker leaves something for whoever takes its place.

    What was left last stays whole, even if the worker dies while it writes: two
    halves take turns, and the first byte says which one counts.
    """

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 1 + 2 * _HALF)

    def leave(self, thing: Any) -> None:
        """Leave `thing`, as JSON; what is too large is not left."""
        data = orjson.dumps(thing)
        half = 1 - self._memory[0]
        start = 1 + half * _HALF
        if _LENGTH + len(data) <= _HALF:
            self._memory[start : start + _LENGTH] = len(data).to_bytes(_LENGTH)
            self._memory[start + _LENGTH : start + _LENGTH + len(data)] = data
            self._memory[0] = half

    def left(self) -> Any:
        """What was left last; None when nothing was."""
        start = 1 + self._memory[0] * _HALF
        length = int.from_bytes(self._memory[start : start + _LENGTH])
        begin = start + _LENGTH
        return orjson.loads(self._memory[begin : begin + length]) if length else None


class Exchange(NamedTuple):
    """What the parent holds for its workers, and what outlives each of them.

    The sockets, at which they answer each other, have no file, so that nothing is
    written anywhere; who asks shows the secret, which only the parent's children know.
    """

    sockets: tuple[socket.socket, ...]
    deposits: tuple[Deposit, ...]
    secret: bytes

    @classmethod
    def open(cls, count: int) -> Exchange:
        sockets = tuple(_abstract() for _ in range(count))
        deposits = tuple(Deposit() for _ in range(count))
        return cls(sockets, deposits, secrets.token_bytes(_SECRET))

    def close(self) -> None:
        """Leave none, in a process that answers nobody."""
        for sock in self.sockets:
            sock.close()

    def close_others(self, worker: Worker) -> None:
        """Leave only this worker's own; the addresses of the others stay known."""
        for index, sock in enumerate(self.sockets):
            if index != worker.index:
                sock.close()


def _abstract() -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.bind(f"\0mindie-gateway-{secrets.token_hex(16)}")
    sock.listen(_BACKLOG)
    sock.setblocking(False)
    return sock


class Siblings:
    """The other workers. Each question is one short connection: nothing is left of a dead one."""

    def __init__(self, worker: Worker, exchange: Exchange) -> None:
        self._own = exchange.sockets[worker.index]
        self._others = [
            sock.getsockname()
            for index, sock in enumerate(exchange.sockets)
            if index != worker.index
        ]
        self._secret = exchange.secret
        self.own_deposit = exchange.deposits[worker.index]
        """What this one leaves for its successor, and found of its predecessor."""
        self.deposits = [each for each in exchange.deposits if each is not self.own_deposit]
        """Those of the others, in the order of their answers."""
        self._answers: Mapping[str, Answer] = {}
        self._server: asyncio.Server | None = None

    async def serve(self, answers: Mapping[str, Answer]) -> None:
        """Answer the others: `answers` has a function for each question."""
        self._answers = answers
        self._server = await asyncio.start_unix_server(self._meet, sock=self._own)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()

    async def ask(self, question: str, value: Any = None, *, of_ended: Any = None) -> list[Any]:
        """What each of the others answers; `of_ended` for one that has ended.

        None for one that does not answer in time. If it was frozen and wakes, it drops the
        question: what is true by then may be another thing than what was asked about.
        """
        # One clock for all processes of a machine.
        asked = self._secret + orjson.dumps([time.monotonic() + ASK_WITHIN, question, value])
        others = (self._ask(address, asked, of_ended) for address in self._others)
        return await asyncio.gather(*others)

    async def _ask(self, address: bytes, asked: bytes, of_ended: Any) -> Any:
        try:
            async with asyncio.timeout(ASK_WITHIN):
                return orjson.loads(await _exchange(address, asked))
        except ConnectionRefusedError:
            return of_ended
        except (OSError, TimeoutError, orjson.JSONDecodeError):
            log.warning("another worker does not answer")
            return None

    async def _meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(ASK_WITHIN):
                asked = await reader.read(_QUESTION)
                while asked and (more := await reader.read(_QUESTION - len(asked))):
                    asked += more
            writer.write(self._answer(asked))
            await writer.drain()
        except (OSError, TimeoutError):
            log.debug("a worker asked and left")
        finally:
            writer.close()

    def _answer(self, asked: bytes) -> bytes:
        """Nothing for a stranger, nor for one who has given up waiting."""
        if not hmac.compare_digest(asked[:_SECRET], self._secret):
            return b""
        by, question, value = orjson.loads(asked[_SECRET:])
        return orjson.dumps(self._answers[question](value)) if time.monotonic() < by else b""


async def _exchange(address: bytes, asked: bytes) -> bytes:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(sock, address)
    except BaseException:
        sock.close()
        raise
    reader, writer = await asyncio.open_unix_connection(sock=sock)
    try:
        writer.write(asked)
        writer.write_eof()
        return await reader.read()
    finally:
        writer.close()


class Crew:
    """The ties of one worker. `parent` is its line to the process that started it.

    `engine` is its line to the process with the engines; None in front of an upstream.
    """

    def __init__(
        self,
        worker: Worker,
        exchange: Exchange,
        parent: socket.socket,
        engine: socket.socket | None = None,
    ) -> None:
        self.worker = worker
        self.engine = engine
        self.heard: Callable[[], float] = lambda: 0.0
        """When this worker last heard from an engine that they share, monotonic seconds."""
        self.siblings = Siblings(worker, exchange)
        self._parent = parent
        exchange.close_others(worker)

    def ask_to_stop(self) -> None:
        """Have the parent stop all workers gracefully; more than once is the same."""
        self._parent.send(ASK_STOP)

    def heed_parent(self, words: Mapping[bytes, Callable[[], None]]) -> None:
        """See the function."""
        heed_parent(self._parent, words)


def heed_parent(parent: socket.socket, words: Mapping[bytes, Callable[[], None]]) -> None:
    """Call `words[word]` for each word of the parent; b"" is its end.

    Its children heed no signals: a terminal and systemd send them to every
    process of a service, and then each would come twice.
    """
    parent.setblocking(False)
    loop = asyncio.get_running_loop()

    def hear() -> None:
        said = parent.recv(64)
        if not said:
            loop.remove_reader(parent.fileno())
        for word in _words(said):
            words[word]()

    loop.add_reader(parent.fileno(), hear)


def _words(said: bytes) -> Sequence[bytes]:
    return [said[i : i + 1] for i in range(len(said))] or [b""]
