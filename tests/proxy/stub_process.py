"""The whole command line with the stub in place of vLLM: `python -m tests.proxy.stub_process`.

MODEL chooses how the stub behaves; everything else is the real thing: settings,
socket, signals, states, exit codes.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Final

import proxy.lifecycle
from proxy.cli import main
from proxy.engines.base import Engine, EngineRequest, ModelInfo
from proxy.engines.stub import StubEngine, echo
from proxy.settings import Settings
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


async def load_stub(settings: Settings, model: str | None, flags: list[str]) -> Engine:
    """Takes the place of `load_embedded`."""
    assert model is not None
    # Each makes its own script.
    return ENGINES[model]()


if __name__ == "__main__":
    proxy.lifecycle.load_embedded = load_stub
    sys.exit(main())
