"""A gateway in front of fake vLLM servers, over real sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from proxy.engines.remote import RemoteEngine, UpstreamOptions
from tests.fake_vllm import Answer, FakeVllm, fake_vllm
from tests.support import MODEL, RunningGateway, generate_body, post, serving


@dataclass
class Sidecar:
    """The gateway, its engine, and the servers behind it."""

    running: RunningGateway
    engine: RemoteEngine
    servers: list[FakeVllm]

    @property
    def server(self) -> FakeVllm:
        """The only one."""
        (server,) = self.servers
        return server

    @property
    def port(self) -> int:
        return self.running.port

    async def settled(self, **outcomes: int) -> None:
        """Wait for these outcomes; then the books balance and no upstream holds anything."""
        await self.running.settled(**outcomes)
        assert not any(upstream.outstanding for upstream in self.engine._upstreams)
        assert not any(upstream._decoding for upstream in self.engine._upstreams)


class _Observed(RemoteEngine):
    """With what `RunningGateway.settled` looks at."""

    @property
    def live(self) -> int:
        return sum(upstream.outstanding for upstream in self._upstreams)


@asynccontextmanager
async def sidecar(
    *servers: FakeVllm, options: dict[str, Any] | None = None, started: bool = True, **settings: Any
) -> AsyncIterator[Sidecar]:
    """A gateway in front of `servers`, by default of one that works."""
    async with AsyncExitStack() as stack:
        used = list(servers) or [await stack.enter_async_context(fake_vllm(names=(MODEL,)))]
        quick = {"check_period": 0.05, **(options or {})}
        engine = _Observed(UpstreamOptions(urls=tuple(one.url for one in used), **quick))
        running = await stack.enter_async_context(serving(engine, started=started, **settings))
        yield Sidecar(running, engine, used)


@asynccontextmanager
async def faulty(answer: Answer, **settings: Any) -> AsyncIterator[Sidecar]:
    """A gateway in front of one server that answers completions with `answer`."""
    async with (
        fake_vllm(names=(MODEL,), answer=answer) as server,
        sidecar(server, **settings) as opened,
    ):
        yield opened


async def ask(opened: Sidecar, text: str = "one two", tokens: int = 3, **parameters: Any) -> Any:
    """The whole response to one generate_stream request."""
    return await post(opened.port, generate_body(text, tokens, **parameters))
