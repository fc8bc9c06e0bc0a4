"""`mindie-gateway serve` as a process of its own, and the processes that it starts."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.e2e.descendants import Descendant, descendants
from tests.e2e.support import eventually

REPOSITORY = Path(__file__).parents[2]
LISTENING = re.compile(rb"listening on http://(?:127\.0\.0\.1|0\.0\.0\.0):(\d+)[^,]* service")
STARTS_WITHIN = 300.0
ENDS_WITHIN = 30.0
FLAGS = (
    *("--port", "0", "--served-model-name", "llama3-70b"),
    *("--dtype", "float32", "--enforce-eager", "--max-model-len", "4096"),
)


class GatewayProcess:
    """A started gateway. `output` is what it has logged so far."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._reading = asyncio.create_task(self._read())
        self._lines = asyncio.Condition()
        self._seen: set[Descendant] = set()
        self._silent = False
        self.output = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    async def _read(self) -> None:
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            self.output += line
            await self._notify()
        self._silent = True
        await self._notify()

    async def _notify(self) -> None:
        async with self._lines:
            self._lines.notify_all()

    async def says(self, words: bytes, times: int = 1) -> None:
        """Wait until it has logged these words so often; fails when it ends before that.

        Each worker logs its own state: what all of them must have done is said by each.
        """

        def said() -> bool:
            return self.output.count(words) >= times

        async with asyncio.timeout(STARTS_WITHIN), self._lines:
            await self._lines.wait_for(lambda: self._silent or said())
        assert said(), self.output.decode(errors="replace")[-4000:]

    async def port(self) -> int:
        """The port it listens on, as soon as it says so."""
        await self.says(b"listening on ")
        found = LISTENING.search(self.output)
        assert found is not None
        return int(found[1])

    async def ready(self) -> int:
        """Wait until its engine can take work; returns the port."""
        await self.says(b"state: ready")
        self.children()
        return await self.port()

    def children(self) -> list[Descendant]:
        """All processes that descend from it, now or at an earlier call, and still live."""
        self._seen.update(descendants(self.pid))
        return [child for child in self._seen if child.lives()]

    async def workers_ready(self, count: int) -> int:
        """Wait until so many workers can take work; returns the port."""
        await self.says(b"state: ready", count)
        return await self.ready()

    def worker(self, index: int) -> Descendant:
        """The process of one of several workers."""
        found = re.findall(rb"worker %d of \d+ has process (\d+)" % index, self.output)
        (worker,) = (child for child in self.children() if child.pid == int(found[-1]))
        return worker

    def engine(self) -> Descendant:
        """The process of vLLM's engine core."""
        (core,) = (child for child in self.children() if "EngineCore" in child.title())
        return core

    def terminate(self) -> None:
        self.children()
        self._process.send_signal(signal.SIGTERM)

    def interrupt(self, number: signal.Signals = signal.SIGINT) -> None:
        """Ctrl-C at its terminal: a signal to all of its process group."""
        self.children()
        os.killpg(self.pid, number)

    async def exit_code(self) -> int:
        """Wait for its end."""
        async with asyncio.timeout(ENDS_WITHIN):
            code = await self._process.wait()
            await self._reading
            return code

    async def leaves_nothing(self) -> None:
        """See that all processes it ever had end soon after it."""
        assert self._seen, "it had no children: this shows nothing"
        await eventually(lambda: not self.children(), within=5.0, what="no child is left")

    async def kill(self) -> None:
        """Clean up after a test, whatever happened in it."""
        for child in self.children():
            child.kill()
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
        await self._reading


@asynccontextmanager
async def gateway_process(
    model: Path, *flags: str, environment: dict[str, str]
) -> AsyncIterator[GatewayProcess]:
    """Start `serve` on a free port; nothing of it is left afterwards."""
    async with serve_process(str(model), *FLAGS, *flags, environment=environment) as started:
        yield started


@asynccontextmanager
async def serve_process(*words: str, environment: dict[str, str]) -> AsyncIterator[GatewayProcess]:
    """`mindie-gateway serve words`; nothing of it is left afterwards."""
    inherited = [environment["PYTHONPATH"]] if environment.get("PYTHONPATH") else []
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "proxy.cli", "serve", *words),
        cwd=REPOSITORY,
        env={**environment, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), *inherited])},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        limit=2**20,
        # As a shell starts it: Ctrl-C is for this group.
        process_group=0,
    )
    started = GatewayProcess(process)
    try:
        yield started
    finally:
        await started.kill()
