"""The engine in this process, which notes the tokens of each request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from vllm import AsyncEngineArgs

from proxy.engines.base import EngineRequest, ModelInfo
from proxy.engines.embedded import EmbeddedEngine
from proxy.engines.stream import TokenStream


@dataclass
class Noted:
    """Token ids of one request."""

    prompt: list[int]
    made: list[int] = field(default_factory=list)


class NotingEngine(EmbeddedEngine):
    """`noted` holds all requests so far, the latest last."""

    def __init__(self, args: AsyncEngineArgs) -> None:
        super().__init__(args)
        self._by_id: dict[str, Noted] = {}

    @property
    def noted(self) -> list[Noted]:
        return list(self._by_id.values())

    async def start(self, on_death: Callable[[str], None]) -> ModelInfo:
        info = await super().start(on_death)
        assert self._tap is not None
        tap, step_done = self._tap, self._tap.step_done

        def note(batch_size: int) -> None:
            for run, output, _ in tap._step:
                self._by_id[run.request_id].made.extend(output.new_token_ids)
            step_done(batch_size)

        tap.step_done = note  # type: ignore[method-assign]
        return info

    async def submit(self, request: EngineRequest) -> TokenStream:
        self._by_id[request.request_id] = Noted(request.prompt)
        return await super().submit(request)
