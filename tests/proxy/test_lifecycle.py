"""The process: start, ready, drain, death, exit codes; with real signals and real ports."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import proxy.lifecycle
from proxy.engines.base import Engine, ModelInfo
from proxy.engines.stub import StubEngine
from proxy.gateway import State
from proxy.lifecycle import EXIT_BIND, EXIT_ENGINE, EXIT_OK, EXIT_USAGE, Process, load_embedded, run
from proxy.listeners import Bound, bind
from proxy.logs import kept
from proxy.settings import Settings, SettingsError
from tests.proxy.without_vllm import without_vllm
from tests.support import (
    Connection,
    connection,
    eventually,
    generate_body,
    get,
    post,
    request_bytes,
)

ROOT = Path(__file__).resolve().parents[2]
WITHIN = 40.0
"""Seconds for a process to start or end on a busy machine."""


class Served:
    """A gateway process under test."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.port = 0
        self.log = ""
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stderr is not None
        while line := await self.process.stderr.readline():
            self.log += line.decode()
            found = re.search(r"listening on http://127\.0\.0\.1:(\d+)", self.log)
            self.port = int(found[1]) if found else 0

    def port_of(self, listener: str) -> int:
        """The port of the listener that serves management or metrics."""
        found = re.search(rf"listening on http://127\.0\.0\.1:(\d+) for {listener},", self.log)
        assert found is not None, self.log
        return int(found[1])

    async def says(self, text: str) -> None:
        """Wait for a line of the log."""
        await eventually(lambda: text in self.log, lambda: self.log, within=WITHIN)

    async def ready(self) -> None:
        await self.says("state: ready")

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    async def exit_code(self) -> int:
        async with asyncio.timeout(WITHIN):
            await self._reading
            return await self.process.wait()


@asynccontextmanager
async def process(*arguments: str, model: str | None = "obedient") -> AsyncIterator[Served]:
    """`mindie-gateway serve MODEL ARGUMENTS` on a free port, killed at the end if it is left."""
    words = ("serve", "--port", "0") if model is None else ("serve", model, "--port", "0")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MINDIE_GATEWAY_")}
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.proxy.stub_process", *words),
        *arguments,
        cwd=ROOT,
        env=environment,
        stderr=asyncio.subprocess.PIPE,
    )
    served = Served(child)
    try:
        yield served
    finally:
        if child.returncode is None:
            child.kill()
        await served.exit_code()


@asynccontextmanager
async def streaming(served: Served, text: str) -> AsyncIterator[Connection]:
    """A client whose stream has begun and goes on."""
    async with connection(served.port) as client:
        client.send(request_bytes(generate_body(text, 50)))
        await client.head()
        assert await client.chunk()
        yield client


async def test_sigterm_lets_running_streams_finish_and_takes_no_new_work() -> None:
    async with process() as served:
        await served.ready()
        async with streaming(served, "slowly") as client:
            served.signal()
            await served.says("shutting down")
            assert (await get(served.port, "/v2/health/live")).status == 200
            assert (await get(served.port, "/v2/health/ready")).status == 503
            refused = await post(served.port, generate_body())
            assert refused.status == 503
            assert refused.headers["retry-after"]
            rest = await client.response_body()
            assert rest.complete
            assert len(rest.frames) == 49
        assert await served.exit_code() == EXIT_OK
        assert "Traceback" not in served.log


async def test_the_drain_deadline_breaks_what_still_runs() -> None:
    async with process("--drain-timeout", "0.3") as served:
        await served.ready()
        async with streaming(served, "wait") as client:
            served.signal()
            rest = await client.response_body()
            assert not rest.complete
            (last,) = rest.frames
            assert last["text_output"] == ""
            assert last["err_msg"] == "the server is shutting down"
            assert last["error_type"] == "Service Unavailable"
        assert await served.exit_code() == EXIT_OK
        assert "breaking 1 requests" in served.log
        assert "Traceback" not in served.log


async def test_a_second_signal_ends_the_process_at_once() -> None:
    async with process() as served:
        await served.ready()
        async with streaming(served, "wait") as client:
            served.signal()
            await served.says("shutting down")
            served.signal()
            assert await served.exit_code() == EXIT_OK
            assert not (await client.response_body()).complete
        assert "second stop signal" in served.log


async def test_the_engines_death_ends_every_stream_and_the_process() -> None:
    async with process() as served:
        await served.ready()
        async with streaming(served, "wait") as client:
            assert not (await post(served.port, generate_body("die"))).complete
            rest = await client.response_body()
            assert not rest.complete
            assert rest.frames[-1]["err_msg"] == "the engine died"
        assert await served.exit_code() == EXIT_ENGINE
        assert "the engine has died: killed by a test" in served.log


async def test_told_to_stay_it_answers_503_until_it_is_stopped() -> None:
    async with process("--stay-after-engine-death") as served:
        await served.ready()
        await post(served.port, generate_body("die"))
        await served.says("state: the engine has died")
        assert (await get(served.port, "/v2/health/live")).status == 200
        assert (await get(served.port, "/v2/health/ready")).json == {
            "message": "the engine has died"
        }
        assert (await post(served.port, generate_body())).status == 503
        served.signal()
        assert await served.exit_code() == EXIT_ENGINE


@pytest.mark.parametrize("option", ["--port", "--management-port", "--metrics-port"])
async def test_a_port_that_is_taken_fails_at_once(option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        # The engine would load for ever: the port is tried first.
        async with process(option, str(port), model="never-starts") as served:
            assert await served.exit_code() == EXIT_BIND
            assert f"cannot listen on 127.0.0.1:{port}" in served.log
            assert "Traceback" not in served.log


async def test_probes_are_answered_while_the_engine_starts() -> None:
    async with process(model="never-starts") as served:
        await served.says("listening on")
        assert (await get(served.port, "/v2/health/live")).status == 200
        assert (await get(served.port, "/v2/health/ready")).json == {
            "message": "the engine is starting"
        }
        assert (await post(served.port, generate_body())).status == 503
        served.signal()
        assert await served.exit_code() == EXIT_OK


async def test_an_idle_process_ends_at_once_and_says_no_more_than_its_log_level() -> None:
    async with process("--log-level", "error") as served:
        # Nothing below an error is said, not even the address: the kernel knows the port.
        await eventually(lambda: _listening_port(served.process.pid), within=WITHIN)
        served.port = _listening_port(served.process.pid)
        await eventually_ready(served.port)
        async with connection(served.port):
            served.signal(signal.SIGINT)
            assert await served.exit_code() == EXIT_OK
        assert served.log == ""


async def eventually_ready(port: int) -> None:
    async with asyncio.timeout(WITHIN):
        while (await get(port, "/v2/health/ready")).status != 200:
            await asyncio.sleep(0.01)


def _listening_port(pid: int) -> int:
    """The TCP port that a process listens on; 0 while there is none."""
    fds = Path(f"/proc/{pid}/fd")
    inodes = set()
    for fd in fds.iterdir() if fds.exists() else ():
        try:
            inodes.add(str(fd.readlink()).partition("socket:[")[2].rstrip("]"))
        except OSError:
            continue
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        columns = line.split()
        if columns[3] == "0A" and columns[9] in inodes:
            return int(columns[1].partition(":")[2], 16)
    return 0


async def test_more_connections_than_the_soft_file_limit_are_served() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
    try:
        starting = process()
        served = await starting.__aenter__()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    try:
        await served.ready()
        clients = [connection(served.port) for _ in range(100)]
        opened = [await each.__aenter__() for each in clients]
        for client in opened:
            client.send(request_bytes(generate_body(tokens=1)))
        for client in opened:
            assert (await client.response()).texts == [" one"]
        for each in clients:
            await each.__aexit__(None, None, None)
    finally:
        await starting.__aexit__(None, None, None)


# The rest of the story needs no process of its own.


class NeverStarts(StubEngine):
    async def start(self, on_death: Callable[[str], None]) -> ModelInfo:
        await asyncio.Event().wait()
        raise AssertionError


class FailsToStart(StubEngine):
    async def start(self, on_death: Callable[[str], None]) -> ModelInfo:
        raise RuntimeError("no memory on any device")


class DislikesItsOptions(StubEngine):
    async def start(self, on_death: Callable[[str], None]) -> ModelInfo:
        raise SettingsError("--max-model-len is larger than the model allows")


class DiesWhileStarting(NeverStarts):
    async def start(self, on_death: Callable[[str], None]) -> ModelInfo:
        on_death("killed while loading")
        return await super().start(on_death)


class DiesAtOnce(StubEngine):
    async def start(self, on_death: Callable[[str], None]) -> ModelInfo:
        on_death("killed while loading")
        return await super().start(on_death)


def settings(**given: Any) -> Settings:
    return Settings(**given)


async def story(engine: StubEngine, **given: Any) -> int:
    """The whole life of a process around `engine`; returns its exit code."""

    async def factory() -> Engine:
        return engine

    async with asyncio.timeout(WITHIN):
        return await Process(settings(**given), factory).serve(Bound(bind("127.0.0.1", 0)))


@pytest.mark.logs_errors
@pytest.mark.parametrize(
    ("engine", "code", "reason"),
    [
        (FailsToStart, EXIT_ENGINE, "the engine did not start"),
        (DiesWhileStarting, EXIT_ENGINE, "the engine has died: killed while loading"),
        (DiesAtOnce, EXIT_ENGINE, "the engine has died: killed while loading"),
        (DislikesItsOptions, EXIT_USAGE, "--max-model-len is larger"),
    ],
)
async def test_an_engine_that_does_not_start_ends_the_process(
    engine: type[StubEngine], code: int, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert await story(engine()) == code
    assert reason in caplog.text


@pytest.mark.logs_errors
async def test_an_engine_that_does_not_stop_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class NeverStops(FailsToStart):
        async def close(self) -> None:
            await asyncio.Event().wait()

    monkeypatch.setattr(proxy.lifecycle, "_ENGINE_CLOSE", 0.05)
    assert await story(NeverStops()) == EXIT_ENGINE


async def test_a_request_that_the_engine_is_taking_is_part_of_the_drain() -> None:
    engine = StubEngine()
    engine.submit_gate.clear()

    async def factory() -> Engine:
        return engine

    sock = bind("127.0.0.1", 0)
    gateway_process = Process(settings(drain_timeout=WITHIN), factory)
    async with connection(sock.getsockname()[1]) as client:
        serving = asyncio.create_task(gateway_process.serve(Bound(sock)))
        await eventually(lambda: gateway_process.gateway.state is State.READY)
        client.send(request_bytes(generate_body()))
        await eventually(lambda: engine.submitted)
        gateway_process.stop()
        await eventually(lambda: gateway_process.gateway.state is State.DRAINING)
        # It goes on listening, because it is not idle.
        assert (await get(sock.getsockname()[1], "/v2/health/ready")).status == 503
        engine.submit_gate.set()
        assert (await client.response()).complete
        assert await serving == EXIT_OK


def test_without_a_model_nothing_is_bound(capsys: pytest.CaptureFixture[str]) -> None:
    with kept(), socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        # Were it to bind, that would fail, and the code were another.
        assert run(Settings(port=port), None, ["--dtype", "float32"]) == EXIT_USAGE
    assert "MODEL is missing" in capsys.readouterr().err


def test_without_its_media_root_nothing_is_bound(capsys: pytest.CaptureFixture[str]) -> None:
    with kept(), socket.create_server(("127.0.0.1", 0)) as taken:
        settings = Settings(port=taken.getsockname()[1], media_root="/nowhere/at/all")
        assert run(settings, "m", []) == EXIT_USAGE
    said = capsys.readouterr().err
    assert "media_root: /nowhere/at/all is no directory that the gateway can use" in said


@pytest.mark.parametrize("flags", [["--model", "m"], ["--model=m"], ["--config", "f.yaml"]])
@pytest.mark.parametrize("model", [None, "m"])
async def test_without_vllm_the_extras_are_named(
    model: str | None, flags: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    without_vllm(monkeypatch)
    with pytest.raises(SettingsError, match="extras"):
        await load_embedded(settings(), model, flags)


async def test_what_the_start_built_is_left_out_of_garbage_collection_before_it_is_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    states: list[State] = []

    async def factory() -> Engine:
        return StubEngine()

    sock = bind("127.0.0.1", 0)
    gateway_process = Process(settings(), factory)
    monkeypatch.setattr(
        proxy.lifecycle, "settle", lambda: states.append(gateway_process.gateway.state)
    )
    serving = asyncio.create_task(gateway_process.serve(Bound(sock)))
    await eventually(lambda: gateway_process.gateway.state is State.READY)
    gateway_process.stop()
    assert await serving == EXIT_OK
    assert states == [State.STARTING]
