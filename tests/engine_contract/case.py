"""One engine under the contract."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from proxy.engines.base import Engine, EngineRequest, ModelInfo
from proxy.engines.stream import TokenStream
from translators.sampling import Sampling
from translators.tokens import Token

_numbers = itertools.count(1)


@dataclass(frozen=True)
class Case:
    """A started engine, and what a test has to know of its kind."""

    engine: Engine
    info: ModelInfo
    held: Callable[[], int]
    """How many requests the engine works on."""
    text: str = "Once upon a time there was a small river"
    gives_logprobs: bool = True
    spells: bool = True
    """Whether it knows the text of a token."""
    unknown_token: int | None = None
    """A token id that the engine must refuse; None for an engine that knows none."""

    async def request(
        self,
        *,
        prompt: list[int] | None = None,
        max_tokens: int = 5,
        priority: int = 0,
        **sampling: Any,
    ) -> EngineRequest:
        """A greedy generation unless told otherwise."""
        values: dict[str, Any] = {
            "temperature": 0.0,
            "top_k": None,
            "top_p": 1.0,
            "repetition_penalty": 1.0,
            "seed": None,
            **sampling,
        }
        return EngineRequest(
            request_id=f"contract-{next(_numbers)}",
            text=self.text,
            prompt=await self.engine.tokenize(self.text) if prompt is None else prompt,
            sampling=Sampling(max_tokens=max_tokens, **values),
            priority=priority,
        )

    async def submit(self, **request: Any) -> TokenStream:
        """A stream that the engine has taken. Raises its refusal."""
        stream = await self.engine.submit(await self.request(**request))
        try:
            await stream.accepted()
        except BaseException:
            stream.close()
            raise
        return stream

    async def run(self, **request: Any) -> list[Token]:
        """All tokens of one generation."""
        return await tokens_of(await self.submit(**request))


async def tokens_of(stream: TokenStream) -> list[Token]:
    """Everything until the end."""
    return [token async for tokens in stream for token in tokens]
