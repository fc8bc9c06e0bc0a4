"""The engine in this process, which notes the tokens of each request."""

from __future__ import annotations

from dataclasses import dataclass, field

from vllm import AsyncEngineArgs

from proxy.engines.base import EngineRequest
from proxy.engines.embedded import EmbeddedEngine
from proxy.engines.stream import TokenStream
from translators.tokens import Token


@dataclass
class Noted:
    """Token ids of one request."""

    prompt: list[int]
    made: list[int] = field(default_factory=list)


class NotingEngine(EmbeddedEngine):
    """`noted` holds all requests so far, the latest last."""

    def __init__(self, args: AsyncEngineArgs) -> None:
        super().__init__(args)
        self.noted: list[Noted] = []

    async def submit(self, request: EngineRequest) -> TokenStream:
        stream = await super().submit(request)
        noted, push = Noted(request.prompt), stream.push
        self.noted.append(noted)

        def note(token: Token) -> None:
            noted.made.append(token.id)
            push(token)

        noted.made.extend(token.id for token in stream._pending)
        stream.push = note  # type: ignore[method-assign]
        return stream
