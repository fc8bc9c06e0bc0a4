"""P6 and P8: measures that need the engine object itself, in one process with the gateway."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from tests.bench.load import mindie_request
from tests.bench.processes import ENVIRONMENT
from tests.bench.report import Row
from tests.support import RunningGateway, serving

_PROMPT: Final = "Hello number {} and"
_MAX_SEQS: Final = 16
_LONG: Final = " word" * 1900
"""Of a prompt that takes the engine a while to read."""


async def _with_engine(
    model: str, work: Callable[[RunningGateway, Any], Awaitable[list[Row]]]
) -> list[Row]:
    os.environ.update(ENVIRONMENT)
    from proxy.engines.embedded import EmbeddedEngine, parse_engine_args

    flags = ["--served-model-name", "bench", "--dtype", "float32", "--max-model-len", "2048"]
    flags += ["--max-num-seqs", str(_MAX_SEQS), "--enforce-eager"]
    engine = EmbeddedEngine(parse_engine_args(model, flags))
    # All are for the engine: none waits in the gateway.
    async with serving(engine, max_requests=4096, max_running=4096) as running:
        return await work(running, engine._engine)


def p6(model: str, rounds: int, tokens: int) -> list[Row]:
    """Tokens per second end to end, beside `AsyncLLM` driven directly: one engine, in turn."""

    async def work(running: RunningGateway, llm: Any) -> list[Row]:
        from tests.bench.load import run

        samples = []
        await _direct(llm, tokens)
        for number in range(rounds):
            begin = time.monotonic()
            counted = await _direct(llm, tokens, number)
            direct = counted / (time.monotonic() - begin)
            result = await run("mindie", running.port, _STREAMS, tokens)
            samples.append(result.frames / result.seconds / direct)
        what = f"tokens/s through the gateway beside AsyncLLM alone, {_STREAMS} streams"
        return [Row("P6", what, tuple(samples), 0.99, 1.0, "x", higher_is_better=True)]

    return asyncio.run(_with_engine(model, work))


_STREAMS: Final = 8


async def _direct(llm: Any, tokens: int, salt: int = 0) -> int:
    from vllm import SamplingParams, TokensPrompt
    from vllm.sampling_params import RequestOutputKind

    tokenizer = llm.get_tokenizer()

    async def one(number: int) -> int:
        params = SamplingParams(
            temperature=1.0,
            top_k=1000,
            seed=number + 1,
            max_tokens=tokens,
            output_kind=RequestOutputKind.DELTA,
        )
        prompt = TokensPrompt(prompt_token_ids=tokenizer.encode(_PROMPT.format(number)))
        count = 0
        async for output in llm.generate(prompt, params, f"direct-{salt}-{number}"):
            count += len(output.outputs[0].token_ids)
        return count

    return sum(await asyncio.gather(*map(one, range(_STREAMS))))


def p8(model: str, rounds: int) -> list[Row]:
    """From a client's leaving to the engine's forgetting, by phase."""

    async def work(running: RunningGateway, llm: Any) -> list[Row]:
        states = llm.output_processor.request_states
        queue, prefill, decode, many = [], [], [], []
        for _ in range(rounds):
            prefill.append(await _leave(running, states, 1, wait_for_token=False, more=_LONG))
            decode.append(await _leave(running, states, 1, wait_for_token=True))
            busy = await _open(running, _MAX_SEQS, tokens=1500)
            queue.append(await _leave(running, states, 1, wait_for_token=False))
            await _close(busy, states)
            many.append(await _leave(running, states, 500, wait_for_token=False))
        return [
            Row("P8", "abort of a queued request", tuple(queue), 1.0, None, "s"),
            Row("P8", "abort in prefill", tuple(prefill), 1.0, None, "s"),
            Row("P8", "abort in decode", tuple(decode), 0.2, None, "s"),
            Row("P8", "the last of 500 aborts at once", tuple(many), 0.5, None, "s"),
        ]

    return asyncio.run(_with_engine(model, work))


_Streams = list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]


async def _open(running: RunningGateway, count: int, tokens: int, more: str = "") -> _Streams:
    streams = []
    for number in range(count):
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(mindie_request(number, tokens, more))
        streams.append((reader, writer))
    await asyncio.gather(*(reader.readuntil(b"\r\n\r\n") for reader, _ in streams))
    return streams


async def _leave(
    running: RunningGateway, states: Any, count: int, *, wait_for_token: bool, more: str = ""
) -> float:
    before = len(states)
    streams = await _open(running, count, 1500 if not more else 1, more)
    if wait_for_token:
        await streams[0][0].readuntil(b"\n\n")
    begin = time.monotonic()
    for _, writer in streams:
        writer.transport.abort()
    while len(states) > before:
        await asyncio.sleep(0.001)
    return time.monotonic() - begin


async def _close(streams: _Streams, states: Any) -> None:
    for _, writer in streams:
        writer.transport.abort()
    while len(states):
        await asyncio.sleep(0.01)
