"""An engine without a model, for tests and for measuring the front end alone.

It is not offered on the command line. It answers each prompt with a script: by
default the words of the prompt, repeated; tests give their own.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from proxy.engines.base import EngineRequest, Load, ModelInfo, Prompt
from proxy.engines.openai import OpenAIApi
from proxy.engines.stream import TokenStream
from proxy.media.content import PromptPart
from proxy.threads import joined
from translators.errors import GatewayError, IncompleteGeneration
from translators.media import TextPart
from translators.tokens import Finish, FinishReason, Token

Script = Callable[[EngineRequest], AsyncIterator[Token]]

STUB_INFO = ModelInfo(
    names=("llama3-70b",),
    max_model_len=2048,
    max_position_embeddings=2048,
    vocab_size=32_000,
    max_num_seqs=256,
    priority_scheduling=True,
    special_token_ids=frozenset({31_998, 31_999}),
    max_num_batched_tokens=8192,
    kv_blocks=1024,
    block_size=16,
    kv_cache_bytes=2 * 2**30,
    world_size=1,
    model_path="/models/llama3-70b",
    device_type="stub",
    dtype="bfloat16",
)


async def echo(request: EngineRequest) -> AsyncIterator[Token]:
    """The prompt's words again and again, until `max_tokens`."""
    words = request.text.split() or ["."]
    last = request.sampling.max_tokens
    for count in range(1, last + 1):
        await asyncio.sleep(0)
        finish = Finish(FinishReason.LENGTH) if count == last else None
        yield Token(count, " " + words[(count - 1) % len(words)], 0.001, 0.0, 1, finish)


async def silent(request: EngineRequest) -> AsyncIterator[Token]:
    """Never a token: the engine is busy with others, or hangs."""
    await asyncio.Event().wait()
    yield Token(0, "", 0.0, 0.0, 1)


@dataclass(slots=True)
class _Run:
    stream: TokenStream
    task: asyncio.Task[None]


def _open_gate() -> asyncio.Event:
    gate = asyncio.Event()
    gate.set()
    return gate


class StubEngine:
    """Plays `script` for each request. `live` holds the requests under way."""

    def __init__(self, script: Script = echo, info: ModelInfo = STUB_INFO) -> None:
        self.script = script
        self.info = info
        self.live: dict[str, _Run] = {}
        self.submitted: list[EngineRequest] = []
        self.cancelled: list[str] = []
        self.refusal: GatewayError | None = None
        self.available = True
        self.openai: OpenAIApi | None = None
        self.start_gate = _open_gate()
        self.submit_gate = _open_gate()
        """Closed (`clear()`), it holds requests that the engine is just taking."""
        self._on_death: Callable[[str], None] | None = None

    async def start(self, on_death: Callable[[str], None]) -> ModelInfo:
        await self.start_gate.wait()
        self._on_death = on_death
        return self.info

    async def tokenize(self, text: str) -> list[int]:
        """One token per word and per run of spaces: enough to count."""
        return list(range(len(text.split())))

    async def pieces(self, ids: list[int]) -> list[str]:
        """Each token's id between angle brackets."""
        return [f"<{token_id}>" for token_id in ids]

    async def prepare(self, parts: Sequence[PromptPart]) -> Prompt:
        """Text as above, and for each medium one token that depends on its bytes."""
        ids: list[int] = []
        seen: list[str | bytes] = []
        for part in parts:
            if isinstance(part, TextPart):
                seen.append(part.text)
                ids += await self.tokenize(part.text)
            else:
                data = await joined(part.content.read)
                seen.append(data)
                ids.append(zlib.crc32(data) % self.info.vocab_size)
        return Prompt(ids, tuple(seen))

    async def submit(self, request: EngineRequest) -> TokenStream:
        self.submitted.append(request)
        await self.submit_gate.wait()
        if self.refusal is not None:
            raise self.refusal
        stream = TokenStream(lambda: self._cancel(request.request_id))
        task = asyncio.create_task(self._play(request, stream))
        self.live[request.request_id] = _Run(stream, task)
        return stream

    async def _play(self, request: EngineRequest, stream: TokenStream) -> None:
        try:
            async for token in self.script(request):
                stream.push(token)
        except GatewayError as error:
            stream.fail(error)
        finally:
            self.live.pop(request.request_id, None)

    def _cancel(self, request_id: str) -> None:
        run = self.live.pop(request_id, None)
        if run is not None:
            self.cancelled.append(request_id)
            run.task.cancel()

    def die(self, reason: str = "killed by a test") -> None:
        """Break every stream and report death, as a real engine's process does."""
        for run in list(self.live.values()):
            run.stream.fail(IncompleteGeneration("the engine died"))
        if self._on_death is not None:
            self._on_death(reason)

    def load(self) -> Load:
        """One sequence and one KV-cache block for each request under way."""
        running = len(self.live)
        return Load(
            running=min(running, self.info.max_num_seqs),
            waiting=max(running - self.info.max_num_seqs, 0),
            kv_cache_usage=min(running / (self.info.kv_blocks or 1), 1.0),
            preemptions=0,
            prefix_queries=0,
            prefix_hits=0,
        )

    async def close(self) -> None:
        for run in list(self.live.values()):
            run.task.cancel()
        self.live.clear()
