"""The parent of several workers that share one address and one engine (`--workers N`).

It binds everything, forks the workers, passes signals on, and starts a worker
that died anew. It serves nothing itself and has neither loop nor threads, so that
a fork is safe at any time. Without an upstream it also forks the host, the process
that has the engines; vLLM lets nobody join them later, so then the death of a
worker ends all.

Each worker has listening sockets of its own on the shared addresses
(SO_REUSEPORT), among which the kernel spreads the connections. The parent keeps
them open: connections that come while a worker is started anew wait for it.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import select
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NoReturn

from proxy.crew import ASK_STOP, RELOAD, STOP, Crew, Exchange, Worker
from proxy.exit_codes import EXIT_ENGINE, EXIT_OK, EXIT_WORKERS
from proxy.listeners import Bound, close_all

log = logging.getLogger(__name__)

RESTARTS: Final = 5
"""Deaths of workers in `RESTART_WINDOW`, beyond which none is started anew."""
RESTART_WINDOW: Final = 60.0
"""Seconds."""
_CRASHED: Final = 70
"""Exit code of a worker that met an error which nobody expected."""
_HEEDED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)

Serve = Callable[[Crew, Sequence[Bound]], int]
"""The life of one worker on its sockets; returns its exit code."""
Host = Callable[[socket.socket, Sequence[socket.socket]], int]
"""The life of the host, given its lines to the parent and to each worker."""


@dataclass
class _Child:
    worker: Worker | None
    """None: it is the host."""
    pid: int
    line: socket.socket
    """To the worker, see `crew`."""


class Supervisor:
    """The parent. `bound` has each worker's sockets, `host` is for engines of their own.

    All get `grace` seconds to stop; `end_now` ends the process and all below it.
    """

    def __init__(
        self,
        bound: Sequence[Sequence[Bound]],
        serve: Serve,
        end_now: Callable[[int], NoReturn],
        grace: float,
        host: Host | None = None,
    ) -> None:
        self._bound = bound
        self._serve = serve
        self._end_now = end_now
        self._grace = grace
        self._host = host
        self._lines = [] if host is None else [socket.socketpair() for _ in bound]
        """Between host and workers: the first end is the host's."""
        self._deadline: float | None = None
        self._exchange = Exchange.open(len(bound))
        self._children: dict[int, _Child] = {}
        self._deaths: deque[float] = deque(maxlen=RESTARTS)
        self._signalled = False
        self._code = EXIT_OK
        self._wakeup, self._alarm = socket.socketpair()

    def run(self) -> int:
        """Until the last worker has ended. Returns the exit code of the whole."""
        self._catch_signals()
        if self._host is not None:
            self._start_host(self._host)
        for index in range(len(self._bound)):
            self._start(Worker(index, len(self._bound)))
        for _, its in self._lines:
            its.close()
        while self._children:
            self._wait()
        return self._code

    @property
    def _workers(self) -> list[_Child]:
        return [child for child in self._children.values() if child.worker is not None]

    def _catch_signals(self) -> None:
        for end in (self._wakeup, self._alarm):
            end.setblocking(False)
        signal.set_wakeup_fd(self._alarm.fileno(), warn_on_full_buffer=False)
        for number in _HEEDED:
            # Not SIG_IGN, which the workers' own children would inherit.
            signal.signal(number, lambda *_: None)

    def _wait(self) -> None:
        """Wait for a signal or a worker's word, and act on it."""
        lines = {child.line.fileno(): child for child in self._children.values()}
        poll = select.poll()
        for number in (self._wakeup.fileno(), *lines):
            poll.register(number, select.POLLIN)
        ready = {number for number, _ in poll.poll(self._patience())}
        for number in ready & lines.keys():
            self._hear(lines[number])
        if self._wakeup.fileno() in ready:
            for signalled in set(self._wakeup.recv(4096)) - {signal.SIGCHLD}:
                self._heed(signalled)
        self._reap()

    def _patience(self) -> float | None:
        """Milliseconds until the workers must have stopped; None while they serve."""
        if self._deadline is None:
            return None
        left = self._deadline - time.monotonic()
        if left <= 0:
            log.error("workers do not stop: they are killed")
            self._end_now(self._code or EXIT_WORKERS)
        return left * 1000

    def _hear(self, child: _Child) -> None:
        with contextlib.suppress(OSError):
            if ASK_STOP in child.line.recv(64):
                self._stop()

    def _heed(self, number: int) -> None:
        if number == signal.SIGHUP:
            self._tell(RELOAD, self._workers)
        elif self._signalled:
            log.warning("second stop signal: ending at once")
            self._end_now(self._code)
        else:
            self._signalled = True
            self._stop()

    def _stop(self) -> None:
        """Begin the graceful stop of all workers, once. The host goes after them."""
        if self._deadline is None:
            self._deadline = time.monotonic() + self._grace
            self._tell(STOP, self._workers)

    @staticmethod
    def _tell(word: bytes, children: Sequence[_Child]) -> None:
        for child in children:
            # One that has just died is reaped in a moment.
            with contextlib.suppress(OSError):
                child.line.send(word)

    def _reap(self) -> None:
        for child in list(self._children.values()):
            pid, status = os.waitpid(child.pid, os.WNOHANG)
            if pid:
                del self._children[pid]
                code = os.waitstatus_to_exitcode(status)
                if child.worker is None:
                    self._host_ended(code)
                else:
                    self._ended(child.worker, code)
                child.line.close()

    def _host_ended(self, code: int) -> None:
        """The workers know it by their lines, and what to do."""
        if code:
            self._code = self._code or (code if code > 0 else EXIT_ENGINE)

    def _ended(self, worker: Worker, code: int) -> None:
        if code > 0 and code != _CRASHED:
            # It has said why: its settings are wrong, or the engine is gone. That is for all.
            self._code = self._code or code
            self._stop()
        elif self._deadline is None:
            self._replace(worker, code)
        if self._deadline is not None:
            # Nobody will answer there any more: new connections go to those that still drain,
            # and these need not wait for its answers.
            close_all(self._bound[worker.index])
            self._exchange.sockets[worker.index].close()
            if not self._workers:
                self._tell(STOP, list(self._children.values()))

    def _replace(self, worker: Worker, code: int) -> None:
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        log.error("worker %d died %s", worker.index, how)
        why_not = self._why_not_again(time.monotonic())
        if why_not is None:
            self._start(replace(worker, generation=worker.generation + 1))
            return
        log.error("%s: ending", why_not)
        self._code = EXIT_WORKERS
        self._stop()

    def _why_not_again(self, now: float) -> str | None:
        """Why no worker takes the place of one that died at `now`; None when one does."""
        if self._host is not None:
            return "nobody can take its place at the engines"
        if len(self._deaths) == RESTARTS and now - self._deaths[0] < RESTART_WINDOW:
            return "workers die again and again"
        self._deaths.append(now)
        return None

    def _start(self, worker: Worker) -> None:
        pid = self._fork(worker, lambda parent: self._work(worker, parent))
        log.info("worker %d of %d has process %d", worker.index, worker.count, pid)

    def _work(self, worker: Worker, parent: socket.socket) -> int:
        for index, bound in enumerate(self._bound):
            if index != worker.index:
                close_all(bound)
        for index, (_, its) in enumerate(self._lines):
            if index != worker.index:
                its.close()
        line = self._lines[worker.index][1] if self._lines else None
        return self._serve(Crew(worker, self._exchange, parent, line), self._bound[worker.index])

    def _start_host(self, host: Host) -> None:
        pid = self._fork(None, lambda parent: self._have_engines(host, parent))
        log.info("the engines have process %d", pid)
        for hosts, _ in self._lines:
            hosts.close()

    def _have_engines(self, host: Host, parent: socket.socket) -> int:
        for bound in self._bound:
            close_all(bound)
        for _, its in self._lines:
            its.close()
        # Else whoever asks a worker that has ended would wait for an answer from here.
        self._exchange.close()
        return host(parent, [hosts for hosts, _ in self._lines])

    def _fork(self, worker: Worker | None, live: Callable[[socket.socket], int]) -> int:
        """Start a child that lives as told, and returns an exit code; returns its process id."""
        ours, its = socket.socketpair()
        # What stands now is shared with the child for good: the collector need not touch it.
        gc.freeze()
        pid = os.fork()
        if pid == 0:
            ours.close()
            self._be(live, its)
        its.close()
        ours.setblocking(False)
        self._children[pid] = _Child(worker, pid, ours)
        return pid

    def _be(self, live: Callable[[socket.socket], int], parent: socket.socket) -> NoReturn:
        """The child's side of the fork; it never comes back from here."""
        code = _CRASHED
        try:
            self._leave_the_parents_things()
            code = live(parent)
        except Exception:
            log.exception("process %d failed", os.getpid())
        finally:
            logging.shutdown()
            os._exit(code)

    def _leave_the_parents_things(self) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for end in (self._wakeup, self._alarm):
            end.close()
        for other in self._children.values():
            other.line.close()
