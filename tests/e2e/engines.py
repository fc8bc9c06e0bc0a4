"""More gateways on the one engine of the session: other settings, the other token path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm import AsyncEngineArgs

from proxy.engines.base import ModelInfo
from proxy.engines.embedded import EmbeddedEngine
from proxy.engines.engine_line import Shared


class SharedEngine(EmbeddedEngine):
    """The session's engine. What it learns of each step it tells its guests as well."""

    def __init__(self, args: AsyncEngineArgs, shared: Shared | None = None) -> None:
        super().__init__(args, openai={}, shared=shared)
        self.arguments = args
        self.guests: list[CollectorGuest] = []

    @property
    def llm(self) -> Any:
        """vLLM's own engine, to drive it directly."""
        return self._engine

    @property
    def unfinished(self) -> int:
        """Requests that vLLM's front end still knows."""
        return len(self.llm.output_processor.request_states)

    def _step_done(self, engine_index: int, scheduler: Any, iteration: Any) -> None:
        super()._step_done(engine_index, scheduler, iteration)
        for guest in self.guests:
            guest._step_done(engine_index, scheduler, iteration)


class CollectorGuest(EmbeddedEngine):
    """`--token-path collector` on an engine that runs already."""

    def __init__(self, host: SharedEngine) -> None:
        super().__init__(host.arguments, direct_tokens=False)
        self._host = host
        host.guests.append(self)

    def _make_engine(self) -> Any:
        return self._host.llm

    async def close(self) -> None:
        self._host.guests.remove(self)
        self._engine = None
        await super().close()


class Borrowed:
    """A running engine, lent to a second gateway, which can neither start nor close it."""

    def __init__(self, engine: EmbeddedEngine, info: ModelInfo) -> None:
        self._engine = engine
        self._info = info

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def start(self, on_death: Callable[[str], None]) -> ModelInfo:
        return self._info

    async def close(self) -> None:
        """The engine goes on."""
