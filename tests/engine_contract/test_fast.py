"""The engine contract without a real engine: the stub, and remote servers of both dialects."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from proxy.engines.remote import RemoteEngine, UpstreamOptions
from proxy.engines.stub import StubEngine
from tests.engine_contract.case import Case
from tests.engine_contract.suite import *  # noqa: F403
from tests.fake_vllm import METRICS, NEW, OLD, fake_vllm


@asynccontextmanager
async def _stub() -> AsyncIterator[Case]:
    engine = StubEngine()
    info = await engine.start(_nobody_dies)
    yield Case(engine, info, held=lambda: len(engine.live), gives_logprobs=False)
    await engine.close()
    await engine.close()


def _remote(**behaviour: Any) -> Callable[[], AbstractAsyncContextManager[Case]]:
    @asynccontextmanager
    async def opened() -> AsyncIterator[Case]:
        async with fake_vllm(**behaviour) as server:
            engine = RemoteEngine(UpstreamOptions(urls=(server.url,)))
            info = await engine.start(_nobody_dies)
            yield Case(
                engine,
                info,
                held=lambda: len(server.live),
                gives_logprobs=behaviour.get("token_ids", True),
                spells=behaviour.get("detokenizes", True),
                unknown_token=900_000,
            )
            await engine.close()
            await engine.close()

    return opened


def _nobody_dies(reason: str) -> None:
    raise AssertionError(reason)


CASES: dict[str, Callable[[], AbstractAsyncContextManager[Case]]] = {
    "stub": _stub,
    "remote 0.23": _remote(version=OLD, metrics=METRICS, hottest=None),
    "remote 0.32": _remote(version=NEW, metrics=METRICS),
    "remote 0.32 with times": _remote(version=NEW, queue_time_ms=0.001),
    "remote that merges": _remote(version=NEW, per_chunk=3),
    "remote without token ids": _remote(version=NEW, token_ids=False, per_chunk=2),
    "remote with the least": _remote(detokenizes=False, takes_priority=False, metrics=""),
}


@pytest.fixture(params=CASES.values(), ids=CASES.keys())
async def case(request: pytest.FixtureRequest) -> AsyncIterator[Case]:
    """A started engine with nothing running."""
    async with request.param() as opened:
        yield opened
