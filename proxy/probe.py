"""Does the engine answer? One real token, on demand (GET /health/timed)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from proxy.engines.base import Engine, EngineRequest, ModelInfo
from translators.errors import GatewayError, IncompleteGeneration
from translators.sampling import Sampling, engine_priority

_PROMPT: Final = "Hello"
_ONE_TOKEN: Final = Sampling(
    temperature=0.0, top_k=None, top_p=1.0, repetition_penalty=1.0, seed=None, max_tokens=1
)
_LOOK: Final = 0.1
"""Seconds between looks at the clients' tokens."""
_HIGHEST: Final = 1
_LOWEST: Final = 5


@dataclass(slots=True)
class _Run:
    task: asyncio.Task[bool]
    waiting: int = 0


class Probe:
    """Runs `attempt`, which raises GatewayError when it fails.

    However many ask at once, one attempt is under way: probing must not become
    load. It ends when the last one who waits for it has given up.
    """

    def __init__(self, attempt: Callable[[], Awaitable[None]]) -> None:
        self._attempt = attempt
        self._run: _Run | None = None

    @property
    def waiting(self) -> int:
        """How many wait for the attempt under way."""
        return 0 if self._run is None else self._run.waiting

    async def succeeds_within(self, seconds: float) -> bool:
        """Whether an attempt succeeds in this time."""
        run = self._run
        if run is None or run.task.done():
            run = self._run = _Run(asyncio.create_task(self._succeeds()))
        run.waiting += 1
        try:
            done, _ = await asyncio.wait({run.task}, timeout=seconds)
            return bool(done) and run.task.result()
        finally:
            run.waiting -= 1
            if not run.waiting:
                run.task.cancel()
                if self._run is run:
                    # It takes a moment to end; nobody must wait for it any more.
                    self._run = None

    async def _succeeds(self) -> bool:
        try:
            await self._attempt()
        except GatewayError:
            return False
        return True


async def see_one_token(
    engine: Engine, info: ModelInfo, request_id: str, last_token: Callable[[], float]
) -> None:
    """Wait for a token: of a request of one's own, or of any client's.

    An engine whose places are all taken has none for the probe, but shows by its
    clients' tokens that it works. `last_token` is the loop time of the latest of
    them. Raises GatewayError when none comes.
    """
    begun = asyncio.get_running_loop().time()
    own = asyncio.ensure_future(take_one_token(engine, info, request_id))
    try:
        while not own.done() and last_token() <= begun:
            await asyncio.wait({own}, timeout=_LOOK)
        if own.done():
            own.result()
    finally:
        own.cancel()
        await asyncio.wait({own})


async def take_one_token(engine: Engine, info: ModelInfo, request_id: str) -> None:
    """One token through the engine, ahead of the clients' requests where it has priorities.

    Raises GatewayError when none comes.
    """
    priority = _HIGHEST if info.priority_scheduling else _LOWEST
    request = EngineRequest(
        request_id=request_id,
        text=_PROMPT,
        prompt=await engine.tokenize(_PROMPT),
        sampling=_ONE_TOKEN,
        priority=engine_priority(priority),
    )
    stream = await engine.submit(request)
    try:
        async for _ in stream:
            return
        raise IncompleteGeneration("the engine ended without a token")
    finally:
        stream.close()
