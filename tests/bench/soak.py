"""Many streams for a long time, a third of which leave: nothing may fail, stick or grow.

`python -m tests.bench.soak [--model DIR] [--streams N] [--seconds S] [--out DIR]`. Without a
model the tokens come from a paced source in the gateway's own process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, cast

from prometheus_client.parser import text_string_to_metric_families

from tests.bench.load import mindie_request
from tests.bench.processes import ServerProcess, server

_LEAVERS: Final = 1 / 3
_TOKENS: Final = (5, 80)
_ENDS_WITHIN: Final = 60.0
_SETTLES_WITHIN: Final = 5.0
_SAMPLES: Final = 60
"""Looks at the memory in one run."""
_GROWTH: Final = 1.05
_SLACK: Final = 4 * 2**20
"""Bytes: an allocator's moods, whatever the size of the process."""


@dataclass
class Report:
    """What one run saw. Memory in bytes."""

    streams: int
    seconds: float
    visits: Counter[str] = field(default_factory=Counter)
    """By how they ended: whole, left, or what was wrong."""
    frames: int = 0
    memory: list[int] = field(default_factory=list)
    counters: dict[str, float] = field(default_factory=dict)

    @property
    def warm_memory(self) -> float:
        """The median of the second quarter."""
        quarter = len(self.memory) // 4
        return statistics.median(self.memory[quarter : 2 * quarter])

    @property
    def last_memory(self) -> float:
        """The median of the last quarter."""
        return statistics.median(self.memory[-(len(self.memory) // 4) :])

    def faults(self) -> list[str]:
        """What must not be; empty for a good run."""
        found = [f"{count} x {end}" for end, count in self.visits.items() if end not in _GOOD]
        if self.last_memory > self.warm_memory * _GROWTH + _SLACK:
            found.append(f"memory grew from {self.warm_memory:.0f} to {self.last_memory:.0f} bytes")
        return found + self._miscounts()

    def _miscounts(self) -> list[str]:
        count = self.counters
        ended = sum(count[outcome] for outcome in _OUTCOMES)
        rules = {
            "received is what has ended": count["received"] == ended,
            "received is what was sent": count["received"] == self.visits.total(),
            # Who leaves at the very end may get it all the same.
            "what was whole has succeeded": count["succeeded"] >= self.visits["whole"],
            "nothing failed": count["failed"] == 0,
            "nothing was refused": count["refused"] == 0,
            "nothing is in flight": count["in flight"] == 0,
            "nothing runs or waits": count["running"] == count["waiting"] == 0,
        }
        return [f"not so: {rule} ({count})" for rule, holds in rules.items() if not holds]


_GOOD: Final = frozenset({"whole", "left"})
_OUTCOMES: Final = ("succeeded", "failed", "cancelled", "refused")


class _Visit(asyncio.Protocol):
    """One request on a connection of its own. `leaves_after` so many frames, if given."""

    def __init__(self, tokens: int, leaves_after: int | None, number: int) -> None:
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.frames = 0
        self._tokens = tokens
        self._leaves_after = leaves_after
        self._number = number
        self._begin = b""
        self._end = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(mindie_request(self._number, self._tokens))
        self._look()

    def data_received(self, data: bytes) -> None:
        self._begin = self._begin or data
        # A frame is announced by five bytes, which two reads may have between them.
        self.frames += (self._end[-4:] + data).count(b"data:")
        self._end = (self._end + data)[-2000:]
        self._look()

    def _look(self) -> None:
        if self._leaves_after is not None and self.frames >= self._leaves_after:
            self._end_with("left")
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_with(self._verdict())

    def _end_with(self, end: str) -> None:
        if not self.ended.done():
            self.ended.set_result(end)

    def _verdict(self) -> str:
        if not self._begin.startswith(b"HTTP/1.1 200 "):
            return self._begin[:13].decode("latin-1") or "no answer"
        # No text can look like this key: a quote within it has a backslash before.
        if b',"err_msg":' in self._end:
            return "error frame"
        if not self._end.endswith(b"0\r\n\r\n"):
            return "cut off"
        length = b'"finish_reason":"length"' in self._end
        if b'"finish_reason":"eos_token"' not in self._end and not length:
            return "no finish reason"
        return "whole" if not length or self.frames == self._tokens else "wrong number of frames"


async def _visitor(port: int, until: float, report: Report, chance: random.Random) -> None:
    loop = asyncio.get_running_loop()
    while time.monotonic() < until:
        tokens = chance.randint(*_TOKENS)
        leaves = chance.randrange(tokens) if chance.random() < _LEAVERS else None
        number = chance.randrange(1000)
        _, visit = await loop.create_connection(
            lambda t=tokens, after=leaves, n=number: _Visit(t, after, n),  # type: ignore[misc]
            "127.0.0.1",
            port,
        )
        try:
            async with asyncio.timeout(max(until - time.monotonic(), 0) + _ENDS_WITHIN):
                end = await visit.ended
        except TimeoutError:
            end = "stuck"
        report.visits[end] += 1
        report.frames += visit.frames


@asynccontextmanager
async def _watched(running: ServerProcess, report: Report) -> AsyncIterator[None]:
    async def watch() -> None:
        while True:
            await asyncio.sleep(report.seconds / _SAMPLES)
            report.memory.append(running.memory)

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()


async def soak(running: ServerProcess, streams: int, seconds: float, seed: int = 1) -> Report:
    """Keep so many visitors busy for so long, then read the counters."""
    report = Report(streams, seconds)
    until = time.monotonic() + seconds
    async with _watched(running, report):
        await asyncio.gather(
            *(
                _visitor(running.port, until, report, random.Random(seed * streams + number))
                for number in range(streams)
            )
        )
    deadline = time.monotonic() + _SETTLES_WITHIN
    report.counters = await asyncio.to_thread(counters, running.port)
    while time.monotonic() < deadline and report.counters["in flight"]:
        await asyncio.sleep(0.1)
        report.counters = await asyncio.to_thread(counters, running.port)
    return report


def counters(port: int) -> dict[str, float]:
    """The gateway's counts of generate_stream requests, by outcome, and its gauges."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    samples = [sample for family in families for sample in family.samples]

    def total(name: str, **labels: str) -> float:
        return sum(
            sample.value
            for sample in samples
            if sample.name == f"mindie_gateway_requests_{name}"
            and labels.items() <= sample.labels.items()
        )

    return {
        "received": total("received_total"),
        **{outcome: total("finished_total", outcome=outcome) for outcome in _OUTCOMES},
        "in flight": total("in_flight"),
        "running": total("running"),
        "waiting": total("waiting"),
    }


def _server(model: str | None, streams: int) -> AbstractContextManager[ServerProcess]:
    ready = "/v2/health/ready"
    if model is None:
        return server(ready, "tests.bench.serve_source", "slow", "{port}")
    return server(
        *(ready, "proxy.cli", "serve", model, "--port", "{port}", "--log-level", "warning"),
        *("--served-model-name", "bench", "--dtype", "float32", "--max-model-len", "512"),
        *("--max-num-seqs", str(streams)),
    )


def main() -> int:
    """Run, print, write. Exit code 1 when anything was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.soak")
    parser.add_argument("--model", help="folder of a model; without it, a paced source")
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--out", type=Path, help="folder for soak-STREAMS.json")
    options = parser.parse_args()
    with _server(options.model, options.streams) as running:
        report = asyncio.run(soak(running, options.streams, options.seconds))
    faults = report.faults()
    print(
        f"{report.streams} streams for {report.seconds:g} s: {report.visits.total()} requests "
        f"({dict(report.visits)}), {report.frames} frames, memory "
        f"{report.warm_memory / 2**20:.1f} MiB when warm, {report.last_memory / 2**20:.1f} MiB "
        f"in the last quarter; {report.counters}"
    )
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        content = json.dumps({**vars(report), "faults": faults}, indent=1)
        (options.out / f"soak-{report.streams}.json").write_text(content + "\n", "utf-8")
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
