"""vLLM's own OpenAI server as a process of its own, as it stands behind a sidecar."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import aiohttp
import pytest

from tests.e2e.descendants import descendants

STARTS_WITHIN = 300.0
NEW_OPTIONS = {(0, 32): ("--enable-per-request-metrics",)}
"""What a version has that the ones before it have not."""


@contextmanager
def vllm_environment(*, gigabytes: int) -> Iterator[dict[str, str]]:
    """vLLM's environment, also of this process: a small cache, and no more in the log than
    warnings. What the caller's environment says about them goes first.
    """
    wanted = {"VLLM_CPU_KVCACHE_SPACE": str(gigabytes), "VLLM_LOGGING_LEVEL": "WARNING"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in wanted.items():
            patch.setenv(name, os.environ.get(name, value))
        yield dict(os.environ)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def own_options() -> tuple[str, ...]:
    """The options beyond 0.23 that the installed vLLM has."""
    from vllm.version import __version_tuple__

    version = tuple(__version_tuple__[:2])
    return tuple(flag for since, flags in NEW_OPTIONS.items() if version >= since for flag in flags)


@asynccontextmanager
async def vllm_server(
    model: Path, *flags: str, environment: dict[str, str], log: Path
) -> AsyncIterator[str]:
    """The URL of a server that is up; nothing of it is left afterwards."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    module = ("-W", "ignore", "-m", "vllm.entrypoints.openai.api_server")
    own = ("--model", str(model), "--host", "127.0.0.1", "--port", str(port))
    async with vllm_process(*module, *own, *flags, environment=environment, log=log) as process:
        await _up(url, process, log)
        yield url


@asynccontextmanager
async def vllm_process(
    *words: str, environment: dict[str, str], log: Path
) -> AsyncIterator[asyncio.subprocess.Process]:
    """`python words`, which starts a server; nothing of it is left afterwards."""
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable, *words, env=environment, stdout=output, stderr=output
        )
    try:
        yield process
    finally:
        children = list(descendants(process.pid))
        with suppress(ProcessLookupError):
            process.terminate()
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), 20)
        for child in children:
            child.kill()
        if process.returncode is None:
            process.kill()
            await process.wait()


def _end_of(log: Path) -> str:
    return log.read_text(errors="replace")[-3000:]


async def _up(url: str, process: asyncio.subprocess.Process, log: Path) -> None:
    async with asyncio.timeout(STARTS_WITHIN), aiohttp.ClientSession() as session:
        while True:
            assert process.returncode is None, _end_of(log)
            with suppress(aiohttp.ClientError, OSError):
                async with session.get(f"{url}/health") as answer:
                    if answer.status == 200:
                        return
            await asyncio.sleep(0.2)
