"""The whole command line with the stub in place of vLLM: `python -m tests.proxy.stub_process`.

MODEL chooses how the stub behaves; everything else is the real thing: settings,
socket, signals, states, exit codes.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Final

import proxy.lifecycle
from proxy.cli import main
from proxy.engines.base import Engine, EngineRequest, ModelInfo
from proxy.engines.engine_line import EngineLine
from proxy.engines.stub import StubEngine, echo
from proxy.settings import Settings, SettingsError
from translators.tokens import Token


class Obedient(StubEngine):
    """Echoes; `die` in a prompt kills it, `wait` keeps a request going without an end."""

    def __init__(self) -> None:
        super().__init__(self._obey)

    async def _obey(self, request: EngineRequest) -> AsyncIterator[Token]:
        if request.text == "die":
            self.die("killed by a test")
        async for token in echo(request):
            yield token
            if request.text == "wait":
                await asyncio.Event().wait()
            if request.text == "slowly":
                await asyncio.sleep(0.02)


class NeverStarts(StubEngine):
    """Loads for ever, as a large model does."""

    async def start(self, on_death: object) -> ModelInfo:
        await asyncio.Event().wait()
        raise AssertionError


ENGINES: Final[dict[str, type[StubEngine]]] = {"obedient": Obedient, "never-starts": NeverStarts}


class Hosted:
    """Takes the place of vLLM's engines in a process of their own."""

    def __init__(self, args: str, clients: int, tell: Callable[[list[dict[str, str]]], None]):
        tell([{"input_address": "ipc://in"}] * clients)
        self._over = threading.Event()
        if args == "never-starts":
            self._over.wait()

    def wait(self) -> None:
        self._over.wait()

    def close(self) -> None:
        self._over.set()


def parse_options(model: str, flags: list[str]) -> SimpleNamespace:
    if model not in ENGINES:
        raise SettingsError("there is no such engine")
    return SimpleNamespace(engine=model)


async def load_stub(
    settings: Settings, model: str | None, flags: list[str], line: EngineLine | None = None
) -> Engine:
    """Takes the place of `load_embedded`."""
    assert model is not None
    if line is None:
        # Each makes its own script.
        return ENGINES[model]()
    assert await line.addresses() == {"input_address": "ipc://in"}
    engine = ENGINES[model]()
    WATCHING.add(asyncio.create_task(_die_with(line, engine)))
    return engine


async def _die_with(line: EngineLine, engine: StubEngine) -> None:
    await line.end()
    engine.die("the process of the engines ended")


WATCHING: Final[set[asyncio.Task[None]]] = set()

if __name__ == "__main__":
    proxy.lifecycle.load_embedded = load_stub
    proxy.lifecycle._embedded = lambda: SimpleNamespace(
        parse_options=parse_options, EngineProcesses=Hosted
    )
    sys.exit(main())
