"""Engines that only hand out tokens: at full rate, paced, or once."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Callable
from typing import Final

from proxy.engines.base import EngineRequest, ModelInfo
from proxy.engines.stream import TokenStream
from proxy.engines.stub import STUB_INFO, StubEngine
from tests.bench.load import MODEL
from translators.media_formats import MediaKind
from translators.tokens import Finish, FinishReason, Token

_INFO: Final = dataclasses.replace(
    STUB_INFO, names=(MODEL,), max_model_len=1_000_000, max_num_seqs=4096
)
_SEEING: Final = dataclasses.replace(_INFO, media=dict.fromkeys(MediaKind, 20))


@dataclasses.dataclass
class _Run:
    stream: TokenStream
    left: int


class SteppedEngine(StubEngine):
    """Like a real engine: each step makes one token for every request.

    `pause` is the time between two steps in seconds, 0 for as fast as it goes;
    `text` makes the text of a step's tokens.
    """

    def __init__(self, pause: float, text: Callable[[], str], info: ModelInfo = _INFO) -> None:
        super().__init__(info=info)
        self._pause = pause
        self._text = text
        self._runs: dict[str, _Run] = {}
        self._steps: asyncio.Task[None] | None = None

    async def tokenize(self, text: str) -> list[int]:
        # As the real engine does it: a large text beside the loop, in a thread. Words are not
        # counted, since that would hold the interpreter, which a tokenizer does not.
        return await asyncio.to_thread(lambda: [3] * (len(text) // 5 + 1))

    async def submit(self, request: EngineRequest) -> TokenStream:
        stream = TokenStream(lambda: self._drop(request.request_id))
        self._runs[request.request_id] = _Run(stream, request.sampling.max_tokens)
        if self._steps is None or self._steps.done():
            self._steps = asyncio.create_task(self._make_steps())
        return stream

    def _drop(self, request_id: str) -> None:
        self._runs.pop(request_id, None)

    async def _make_steps(self) -> None:
        due = time.monotonic()
        while self._runs:
            self._step()
            due += self._pause
            await asyncio.sleep(max(due - time.monotonic(), 0.0))

    def _step(self) -> None:
        for request_id, run in list(self._runs.items()):
            run.left -= 1
            finish = None if run.left > 0 else Finish(FinishReason.LENGTH)
            if finish is not None:
                self._drop(request_id)
            token = Token(5, self._text(), 0.01, 0.0, len(self._runs) or 1, finish)
            run.stream.push(token)


class IdleEngine(StubEngine):
    """One token, then silence: what an open stream costs by itself."""

    def __init__(self) -> None:
        super().__init__(info=_INFO)

    async def submit(self, request: EngineRequest) -> TokenStream:
        stream = TokenStream(lambda: None)
        stream.push(Token(5, " token", 0.01, 0.0, 1))
        return stream


PACE: Final = 1 / 50
"""Seconds per token of a paced stream."""

_SLOW_PACE: Final = 1 / 4
"""For very many streams at a time, on two cores."""

ENGINES: Final[dict[str, Callable[[], StubEngine]]] = {
    "full": lambda: SteppedEngine(0.0, lambda: " token"),
    "paced": lambda: SteppedEngine(PACE, lambda: f"@{time.monotonic():.6f}@"),
    "slow": lambda: SteppedEngine(_SLOW_PACE, lambda: " token"),
    "seeing": lambda: SteppedEngine(PACE, lambda: f"@{time.monotonic():.6f}@", _SEEING),
    "idle": IdleEngine,
}
