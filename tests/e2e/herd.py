"""The gateway processes of the session, started all at once: starting is what takes long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.collector import Collector, collecting
from tests.e2e.plugin import OPTION, InstalledPlugin
from tests.e2e.process import GatewayProcess, gateway_process

BLOCKS = 9
"""KV cache blocks of 128 tokens, of which vLLM keeps one: less than three texts of 300 need."""
ROOMY = ("--num-gpu-blocks-override", "256")
CRAMPED = (
    *("--num-gpu-blocks-override", str(BLOCKS), "--max-model-len", "512"),
    *("--no-enable-prefix-caching", "--scheduling-policy", "fcfs", OPTION),
)


SPREAD = {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}
"""Otherwise vLLM binds the workers of all four to the same core."""


OTLP = {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"}
"""vLLM's own default is gRPC."""


@dataclass(frozen=True)
class Herd:
    """Each is for one test to use up, but the last, which all may use."""

    mortal: GatewayProcess
    """Ends with its engine."""
    staying: GatewayProcess
    """Stays when its engine has died."""
    draining: GatewayProcess
    cramped: GatewayProcess
    """Very little KV cache, no priorities, and a platform that comes as a plugin."""
    plugin: InstalledPlugin
    collector: Collector
    """Takes the spans of the cramped one and of its engine."""


@asynccontextmanager
async def started_herd(
    model: Path, environment: dict[str, str], plugin: InstalledPlugin
) -> AsyncIterator[Herd]:
    """Start all, and wait until all are ready."""
    async with AsyncExitStack() as stack:
        collector = await stack.enter_async_context(collecting())
        yield await _started(stack, model, environment, plugin, collector)


async def _started(
    stack: AsyncExitStack,
    model: Path,
    environment: dict[str, str],
    plugin: InstalledPlugin,
    collector: Collector,
) -> Herd:
    traced = ("--trace-endpoint", collector.url, "--otlp-traces-endpoint", collector.url)
    plans: tuple[tuple[tuple[str, ...], dict[str, str]], ...] = (
        (ROOMY, {}),
        ((*ROOMY, "--stay-after-engine-death"), {}),
        ((*ROOMY, "--drain-timeout", "120"), {}),
        ((*CRAMPED, *traced), {**plugin.environment, **OTLP}),
    )
    processes = [
        await stack.enter_async_context(
            gateway_process(model, *flags, environment={**environment, **SPREAD, **own})
        )
        for flags, own in plans
    ]
    await asyncio.gather(*(process.ready() for process in processes))
    mortal, staying, draining, cramped = processes
    return Herd(mortal, staying, draining, cramped, plugin, collector)
