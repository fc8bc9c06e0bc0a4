"""The story of one process: bind → start engine → ready → serve → drain → close."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Awaitable, Sequence
from functools import partial
from types import ModuleType
from typing import Final, NoReturn

from proxy.app import build_app
from proxy.children import kill_descendants
from proxy.crew import ALONE, RELOAD, STOP, Crew
from proxy.engine_host import EngineHost, Engines
from proxy.engines.base import Engine
from proxy.engines.engine_line import Board, EngineLine, Shared, tell
from proxy.exit_codes import EXIT_BIND, EXIT_ENGINE, EXIT_OK, EXIT_USAGE
from proxy.gateway import EngineFactory, Gateway, State
from proxy.heap import settle
from proxy.listeners import Bound, bind_all, bind_for_workers, close_all
from proxy.logs import configure, kept
from proxy.media.build import missing_directory
from proxy.reload import Reloader
from proxy.security import put_in_force
from proxy.server import CLOSE_TIMEOUT, HttpServer, allow_open_files
from proxy.settings import NO_VLLM, Settings, SettingsError
from proxy.threads import in_thread
from translators.errors import IncompleteGeneration, ServiceUnavailable

log = logging.getLogger(__name__)

_NAME_A_MODEL: Final = ("--model", "--config")
"""vLLM's own options that can stand for MODEL."""
_LAST_WORDS: Final = 2.0
"""Seconds that broken streams get to deliver their error frames."""
_PARENTS_PATIENCE: Final = 5.0
"""Seconds beyond what they need, after which workers that do not stop are killed."""
_POLL: Final = 0.05
_ENGINE_CLOSE: Final = 10.0
"""Seconds that the engine gets to stop before its processes are killed."""
CLOSING: Final = _LAST_WORDS + CLOSE_TIMEOUT + _ENGINE_CLOSE
"""Seconds that the end takes at most after the drain: last words, connections, the engine."""


def run(settings: Settings, model: str | None, engine_flags: list[str]) -> int:
    """Serve until a signal or the engine's death; returns the exit code."""
    configure(settings.log_level, settings.log_format)
    # In front of an upstream each client's stream has a connection of its own there.
    allow_open_files(settings.max_connections * (2 if settings.upstream else 1))
    objection = _objection(settings, model, engine_flags)
    if objection is not None:
        log.error("%s", objection)
        return EXIT_USAGE
    try:
        if settings.workers > 1:
            return _run_workers(settings, model, engine_flags, bind_for_workers(settings))
        bound = bind_all(settings)
    except OSError as error:
        log.error("%s", error)
        return EXIT_BIND
    return _serve(settings, model, engine_flags, bound)


def _run_workers(
    settings: Settings, model: str | None, flags: list[str], rows: Sequence[Sequence[Bound]]
) -> int:
    """Be the parent of several processes that serve together."""
    from proxy.workers import Supervisor

    board = Board(settings.workers)

    def serve(crew: Crew, bound: Sequence[Bound]) -> int:
        return _serve(settings, model, flags, bound, crew, board)

    def host(parent: socket.socket, lines: Sequence[socket.socket]) -> int:
        return _host_engines(model, flags, parent, lines)

    _announce(rows[0], settings)
    grace = settings.pre_stop_wait + settings.drain_timeout + CLOSING + _PARENTS_PATIENCE
    own = None if settings.upstream else host
    return Supervisor(rows, serve, _end_now, grace, own).run()


def _serve(
    settings: Settings,
    model: str | None,
    flags: list[str],
    bound: Sequence[Bound],
    crew: Crew | None = None,
    board: Board | None = None,
) -> int:
    """Be the only process that serves, or one of several."""
    import uvloop

    line = None
    if crew is not None and crew.engine is not None and board is not None:
        line = EngineLine(crew.engine, crew.worker, board)
        crew.heard = line.heard

    async def make_engine() -> Engine:
        if settings.upstream:
            from proxy.engines.remote.from_settings import remote_engine

            return remote_engine(settings, model, flags)
        return await load_embedded(settings, model, flags, line)

    try:
        process = Process(settings, make_engine, crew)
    except SettingsError as error:
        close_all(bound)
        log.error("%s", error)
        return EXIT_USAGE
    code = uvloop.run(process.serve(*bound))
    _leave(code)
    return code


def _host_engines(
    model: str | None, flags: list[str], parent: socket.socket, lines: Sequence[socket.socket]
) -> int:
    """Be the process that has the engines, for several workers."""
    import uvloop

    def start() -> Engines:
        with kept():
            embedded = _embedded()
            args = embedded.parse_options(model, flags).engine
            engines: Engines = embedded.EngineProcesses(args, len(lines), partial(tell, lines))
            return engines

    host = EngineHost(start, parent, lines)
    code = uvloop.run(host.run(partial(_end_now, EXIT_ENGINE)))
    _leave(code)
    return code


def _objection(settings: Settings, model: str | None, flags: Sequence[str]) -> str | None:
    """Why this cannot be served, by what can be seen before anything is bound."""
    if not settings.upstream and not _names_a_model(model, flags):
        return "MODEL is missing: it stands right after `serve`"
    return missing_directory(settings)


def _names_a_model(model: str | None, flags: Sequence[str]) -> bool:
    return model is not None or any(flag.partition("=")[0] in _NAME_A_MODEL for flag in flags)


def _embedded() -> ModuleType:
    """The module with vLLM, whose import takes long. SettingsError where there is none."""
    try:
        return importlib.import_module("proxy.engines.embedded")
    except ModuleNotFoundError as error:
        if error.name != "vllm":
            raise
        raise SettingsError(NO_VLLM) from None


async def load_embedded(
    settings: Settings, model: str | None, flags: list[str], line: EngineLine | None = None
) -> Engine:
    """Import vLLM beside the running loop, since it takes long, and make its engine.

    With a `line` it is that of another process, which it waits for.
    """
    embedded = await in_thread(_embedded)
    # What is wrong with the options the other process says, and once is enough.
    addresses = None if line is None else await line.addresses()

    def make() -> Engine:
        options = embedded.parse_options(model, flags)
        if options.openai and not settings.openai_api:
            names = ", ".join(options.openai)
            raise SettingsError(f"without the OpenAI API these have no effect: {names}")
        engine: Engine = embedded.EmbeddedEngine(
            options.engine,
            direct_tokens=settings.token_path == "direct",
            media_prompt=settings.media_prompt,
            max_pixels=settings.media_max_pixels,
            media_seconds=settings.media_total_timeout,
            openai=options.openai if settings.openai_api else None,
            shared=None if addresses is None or line is None else Shared(line, addresses),
        )
        return engine

    return await in_thread(make)


class Process:
    """One serving process around one gateway; with a `crew` it is one of several."""

    def __init__(
        self, settings: Settings, engine_factory: EngineFactory, crew: Crew | None = None
    ) -> None:
        self.settings = settings
        self.crew = crew
        self.gateway = Gateway(settings, engine_factory, ALONE if crew is None else crew.worker)
        self.server = HttpServer(build_app(self.gateway))
        self._stop = asyncio.Event()
        self._reloader = Reloader(
            lambda what: self.gateway.metrics.reload_failures.labels(what).inc()
        )
        self._signalled = False
        self._death: str | None = None
        self.gateway.request_stop = self._stop.set if crew is None else crew.ask_to_stop

    async def serve(self, *bound: Bound) -> int:
        """The whole story. Returns the exit code."""
        try:
            await put_in_force(self.settings, self.gateway.access, self.server, self._reloader)
        except SettingsError as error:
            log.error("%s", error)
            return EXIT_USAGE
        if self.crew is None:
            self._listen_to_signals()
        else:
            self._listen_to_parent(self.crew)
            await self.gateway.join(self.crew.siblings, self.crew.heard)
        await self.server.start(*bound)
        if self.crew is None:
            _announce(bound, self.settings)
        watching = [asyncio.create_task(self._reloader.run())]
        if self.crew is not None:
            watching.append(asyncio.create_task(self.gateway.keep_books()))
        if self.settings.progress_timeout:
            watching.append(asyncio.create_task(self.gateway.watchdog.run()))
        try:
            code = await self._until_the_end()
        finally:
            for task in watching:
                task.cancel()
            await self._close()
        return code

    async def _close(self) -> None:
        await self.server.close()
        if self.crew is not None:
            # Every request has ended: the others show these figures from now on.
            self.gateway.leave_books()
        await self._close_engine()
        if self.crew is not None:
            # Last: until this process has ended, whoever asks it waits for an answer.
            self.crew.siblings.close()
        self.gateway.enter(State.STOPPED)

    def stop(self) -> None:
        """Begin the graceful stop, as a signal does; the second one ends the process at once."""
        if self._signalled:
            log.warning("second stop signal: ending at once")
            _end_now(EXIT_OK if self._death is None else EXIT_ENGINE)
        self._signalled = True
        self._stop.set()

    async def _until_the_end(self) -> int:
        starting = asyncio.create_task(self.gateway.start_engine(self._on_death, settle=settle))
        await _first(starting, self._stop.wait())
        if not starting.done():
            starting.cancel()
            return self._ended_early()
        try:
            await starting
        except SettingsError as error:
            log.error("%s", error)
            return EXIT_USAGE
        except Exception as error:
            log.exception("the engine's start failed")
            # Last, where a person looks first.
            log.error("the engine did not start: %s", _first_line(error))
            return EXIT_ENGINE
        await self._stop.wait()
        if self._death is not None and not self.settings.stay_after_engine_death:
            await self._wait_until_idle(_LAST_WORDS)
            return EXIT_ENGINE
        await self._wait_before_stopping()
        await self._drain()
        return EXIT_ENGINE if self._death is not None else EXIT_OK

    def _ended_early(self) -> int:
        """Stopped, or the engine died, while it was still starting: nobody is served yet."""
        if self._death is not None:
            return EXIT_ENGINE
        self.gateway.enter(State.DRAINING)
        return EXIT_OK

    async def _wait_before_stopping(self) -> None:
        """Be unready but take work, until the load balancers send none any more."""
        if self.settings.pre_stop_wait and self._death is None:
            self.gateway.enter(State.LEAVING)
            await asyncio.sleep(self.settings.pre_stop_wait)

    async def _drain(self) -> None:
        """New work is refused; running streams finish, or are broken at the deadline."""
        if self.gateway.state is not State.DEAD:
            self.gateway.enter(State.DRAINING)
        self.gateway.admission.refuse_waiting(self.gateway.unavailable())
        if not await self._wait_until_idle(self.settings.drain_timeout):
            log.warning("drain deadline: breaking %d requests", self.gateway.under_way)
            self.gateway.live.break_all(ServiceUnavailable("the server is shutting down"))
            await self._wait_until_idle(_LAST_WORDS)

    async def _close_engine(self) -> None:
        try:
            async with asyncio.timeout(_ENGINE_CLOSE):
                await self.gateway.close_engine()
        except TimeoutError:
            log.warning("the engine does not stop: its processes are killed")

    async def _wait_until_idle(self, seconds: float) -> bool:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        # Admitted, not live: a request that the engine is just taking counts as well.
        while self.gateway.under_way and loop.time() < deadline:
            await asyncio.sleep(_POLL)
        return not self.gateway.under_way

    def _on_death(self, reason: str) -> None:
        """The engine is gone: break what runs, refuse what comes, and end unless told to stay."""
        if self.gateway.state in (State.DEAD, State.STOPPED):
            return
        log.error("the engine has died: %s", reason)
        self._death = reason
        self.gateway.enter(State.DEAD)
        self.gateway.admission.refuse_waiting(self.gateway.unavailable())
        self.gateway.live.break_all(IncompleteGeneration("the engine died"))
        if not self.settings.stay_after_engine_death:
            self._stop.set()

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        loop.add_signal_handler(signal.SIGHUP, self._reloader.ask)

    def _listen_to_parent(self, crew: Crew) -> None:
        orphaned = partial(_end_now, EXIT_ENGINE)
        crew.heed_parent({STOP: self.stop, RELOAD: self._reloader.ask, b"": orphaned})


async def _first(*things: Awaitable[object]) -> None:
    tasks = [asyncio.ensure_future(thing) for thing in things]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)


def _announce(bound: Sequence[Bound], settings: Settings) -> None:
    scheme = "http" if settings.tls_cert_file is None else "https"
    for sock, serves in bound:
        host, port = sock.getsockname()[:2]
        what = " and ".join(sorted(each.value for each in serves))
        log.info("listening on %s://%s:%d for %s, the engine is starting", scheme, host, port, what)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def _leave(code: int) -> None:
    """End at once when a thread is still inside the engine's start and cannot be stopped."""
    if any(thread.daemon and thread.is_alive() for thread in threading.enumerate()[1:]):
        _end_now(code)


def _end_now(code: int) -> NoReturn:
    kill_descendants()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
