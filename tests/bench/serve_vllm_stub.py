"""vLLM's own OpenAI server with its engine's answers replaced by tokens at full rate.

`python -m tests.bench.serve_vllm_stub MODEL PORT`. The server code is vLLM's,
unchanged; only `AsyncLLM.generate` hands out what a stepped engine would, through
vLLM's own collectors.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import sys
from collections.abc import AsyncIterator
from typing import Any

import uvloop
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.output_processor import RequestOutputCollector

from tests.bench.load import MODEL

_NEW_HOME = "vllm.entrypoints.launchers"
_IS_NEW = importlib.util.find_spec(_NEW_HOME) is not None
_HOME = _NEW_HOME if _IS_NEW else "vllm.entrypoints.openai"
make_arg_parser = importlib.import_module(f"{_HOME}.cli_args").make_arg_parser
run_server = importlib.import_module(
    f"{_HOME}.api_server.entry" if _IS_NEW else f"{_HOME}.api_server"
).run_server


class _Steps:
    """One loop that gives every request a token at each turn."""

    def __init__(self) -> None:
        self.runs: dict[str, list[Any]] = {}
        self.task: asyncio.Task[None] | None = None

    def add(self, request_id: str, tokens: int) -> RequestOutputCollector:
        collector = RequestOutputCollector(RequestOutputKind.DELTA, request_id)
        self.runs[request_id] = [collector, tokens]
        if self.task is None or self.task.done():
            self.task = asyncio.create_task(self._go())
        return collector

    async def _go(self) -> None:
        while self.runs:
            for request_id, run in list(self.runs.items()):
                run[1] -= 1
                if run[1] <= 0:
                    del self.runs[request_id]
                run[0].put(_output(request_id, finished=run[1] <= 0))
            await asyncio.sleep(0)


def _output(request_id: str, *, finished: bool) -> RequestOutput:
    completion = CompletionOutput(
        index=0,
        text=" token",
        token_ids=[5],
        cumulative_logprob=None,
        logprobs=None,
        finish_reason="length" if finished else None,
    )
    return RequestOutput(
        request_id=request_id,
        prompt=None,
        prompt_token_ids=[1, 2, 3],
        prompt_logprobs=None,
        outputs=[completion],
        finished=finished,
    )


_STEPS = _Steps()


async def _generate(
    self: AsyncLLM, prompt: Any, sampling_params: Any, request_id: str, **options: Any
) -> AsyncIterator[RequestOutput]:
    collector = _STEPS.add(request_id, sampling_params.max_tokens)
    finished = False
    while not finished:
        output = collector.get_nowait() or await collector.get()
        finished = output.finished
        yield output


def main() -> None:
    """Serve until a signal."""
    model, port = sys.argv[1:3]
    AsyncLLM.generate = _generate
    flags = ["--model", model, "--served-model-name", MODEL, "--port", port]
    flags += ["--dtype", "float32", "--max-model-len", "8192", "--disable-uvicorn-access-log"]
    flags += ["--enforce-eager"]  # its engine is never asked
    args = make_arg_parser(FlexibleArgumentParser()).parse_args(flags)
    uvloop.run(run_server(args))


if __name__ == "__main__":
    main()
