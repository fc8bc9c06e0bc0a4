"""P1 to P10: what is measured, beside what, against which target."""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any, Final

from tests.bench import own_engine
from tests.bench.media_neighbours import MEDIA_ROOT
from tests.bench.processes import ServerProcess, server
from tests.bench.report import Row

_READY: Final = "/v2/health/ready"
_OPENAI_READY: Final = "/v1/models"
_QUIET: Final = ("--log-level", "warning")
_SERVER_CORE: Final = 0
_LOAD_CORE: Final = 1


@dataclass(frozen=True)
class Plan:
    """How much is run. `model` is the 1-layer model, `real_model` SmolLM2."""

    model: str
    real_model: str
    rounds: int = 5
    tokens: int = 1000
    engine_tokens: int = 200
    streams: int = 64
    portions: tuple[int, ...] = (1, 16)
    """Tokens that the upstream of P3 writes at once."""


def load(kind: str, port: int, streams: int, tokens: int) -> dict[str, Any]:
    """One run of the load generator, in a process and on a core of its own."""
    words = [sys.executable, "-m", "tests.bench.load", kind, str(port), str(streams), str(tokens)]
    done = subprocess.run(
        ["taskset", "-c", str(_LOAD_CORE), *words],
        check=True,
        capture_output=True,
    )
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def cost(running: ServerProcess, kind: str, streams: int, tokens: int) -> float:
    """CPU microseconds per frame of one run."""
    before = running.cpu
    result = load(kind, running.port, streams, tokens)
    return (running.cpu - before) * 1e6 / max(result["frames"], 1)


def _interleaved(
    plan: Plan, ours: Callable[[], float], theirs: Callable[[], float]
) -> list[tuple[float, float]]:
    ours(), theirs()  # warm-up
    return [(ours(), theirs()) for _ in range(plan.rounds)]


def p1(plan: Plan) -> list[Row]:
    """Frames per second and core on tokens at full rate, beside vLLM's server code."""
    with ExitStack() as stack:
        ours = stack.enter_context(
            server(_READY, "tests.bench.serve_source", "full", "{port}", core=_SERVER_CORE)
        )
        theirs = stack.enter_context(
            server(
                _OPENAI_READY,
                *("tests.bench.serve_vllm_stub", plan.model, "{port}"),
                core=_SERVER_CORE,
            )
        )
        pairs = _interleaved(
            plan,
            lambda: cost(ours, "mindie", plan.streams, plan.tokens),
            lambda: cost(theirs, "openai", plan.streams, plan.tokens),
        )
    ratios = tuple(their / our for our, their in pairs)
    what = f"frames/s per core beside vLLM's server, stub, {plan.streams} streams"
    return [
        Row("P1", what, ratios, 2.5, 4.0, "x", higher_is_better=True),
    ]


def p2(plan: Plan) -> list[Row]:
    """Front-end CPU per token on the real AsyncLLM, beside vLLM's own server."""
    common = ["--dtype", "float32", "--max-model-len", "2048", "--max-num-seqs", str(plan.streams)]
    common += ["--served-model-name", "bench", "--enforce-eager"]
    gateway = ["proxy.cli", "serve", plan.model, "--port", "{port}", *_QUIET, *common]
    openai = ["vllm.entrypoints.openai.api_server", "--model", plan.model, "--port", "{port}"]
    openai += [*common, "--disable-uvicorn-access-log"]
    with server(_READY, *gateway) as ours, server(_OPENAI_READY, *openai) as theirs:
        pairs = _interleaved(
            plan,
            lambda: cost(ours, "mindie", plan.streams, plan.engine_tokens),
            lambda: cost(theirs, "openai", plan.streams, plan.engine_tokens),
        )
    ratios = tuple(our / their for our, their in pairs)
    what = f"CPU per token beside vLLM's server, real engine, {plan.streams} streams"
    return [Row("P2", what, ratios, 0.5, 0.3, "x")]


_PORTIONS: Final = {1: "one token a write, as vLLM sends", 16: "16 a write, an upstream ahead"}


def p3(plan: Plan) -> list[Row]:
    """CPU per frame of the sidecar, beside a plain byte pass-through in aiohttp."""
    return [_p3(plan, portion, _PORTIONS[portion]) for portion in plan.portions]


def _p3(plan: Plan, portion: int, how: str) -> Row:
    with ExitStack() as stack:
        source = stack.enter_context(
            server("/health", "tests.bench.upstream", "{port}", str(portion))
        )
        upstream = f"http://127.0.0.1:{source.port}"
        ours = stack.enter_context(
            server(
                _READY,
                *("proxy.cli", "serve", "--port", "{port}", "--upstream", upstream, *_QUIET),
                core=_SERVER_CORE,
            )
        )
        theirs = stack.enter_context(
            server("/health", "tests.bench.passthrough", "{port}", upstream, core=_SERVER_CORE)
        )
        pairs = _interleaved(
            plan,
            lambda: cost(ours, "mindie", plan.streams, plan.tokens),
            lambda: cost(theirs, "openai", plan.streams, plan.tokens),
        )
    ratios = tuple(our / their for our, their in pairs)
    what = f"sidecar's CPU per frame beside a byte pass-through, {plan.streams} streams, {how}"
    return Row("P3", what, ratios, 2.5, 1.5, "x")


def p4(plan: Plan) -> list[Row]:
    """Time that the gateway adds to a token, beside a client straight at the source."""
    tokens = max(plan.tokens // 10, 50)
    added: dict[str, list[float]] = {}
    with (
        server(_READY, "tests.bench.serve_source", "paced", "{port}", core=_SERVER_CORE) as ours,
        server("/health", "tests.bench.serve_bare", "{port}", core=_SERVER_CORE) as bare,
    ):
        for number in range(plan.rounds + 1):
            through = load("mindie", ours.port, plan.streams, tokens)
            straight = load("mindie", bare.port, plan.streams, tokens)
            if not number:
                continue  # warm-up
            for kind, share in _P4_TARGETS:
                extra = percentile(through[kind], share) - percentile(straight[kind], share)
                added.setdefault(f"{kind}{share}", []).append(extra * 1e3)
    names = {"first": "time to first token", "later": "time between tokens"}
    return [
        Row(
            "P4",
            f"added {names[kind]}, p{share}, {plan.streams} streams at 50/s",
            tuple(added[f"{kind}{share}"]),
            target,
            target / 2,
            "ms",
        )
        for (kind, share), target in _P4_TARGETS.items()
    ]


_P4_TARGETS: Final = {
    ("first", 50): 1.5,
    ("first", 99): 5.0,
    ("later", 50): 1.5,
    ("later", 99): 5.0,
}


def percentile(values: list[float], share: int) -> float:
    """The `share`-th percentile of at least two values."""
    return statistics.quantiles(values, n=100, method="inclusive")[share - 1]


def p5(plan: Plan) -> list[Row]:
    """Memory of an open stream that is silent."""
    count = 1000
    samples = []
    for _ in range(plan.rounds):
        with server(_READY, "tests.bench.serve_source", "idle", "{port}") as running:
            asyncio.run(_hold(running.port, 50, running, []))
            grown: list[int] = []
            asyncio.run(_hold(running.port, count, running, grown))
            samples.append(grown[0] / count / 1024)
    return [
        Row("P5", f"memory per open stream, {count} idle streams", tuple(samples), 20, 12, "KiB")
    ]


async def _hold(port: int, count: int, running: ServerProcess, grown: list[int]) -> None:
    from tests.bench.load import mindie_request

    before = running.memory
    writers = []
    for number in range(count):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(mindie_request(number, 10))
        await reader.readuntil(b"\n\n")
        writers.append(writer)
    grown.append(running.memory - before)
    for writer in writers:
        writer.close()
    await asyncio.sleep(0.5)


def p9(plan: Plan) -> list[Row]:
    """What a frame costs as the text grows with full_text, net of the bytes themselves."""
    samples = []
    for _ in range(plan.rounds):
        short, long = _full_text_cost(100), _full_text_cost(4000)
        copied = _copy_cost(4000 * 6) - _copy_cost(100 * 6)
        samples.append((long - short) / max(copied, 1e-9))
    what = "growth of a full_text frame's cost, 100 to 4,000 tokens, beside copying its bytes"
    return [Row("P9", what, tuple(samples), 10.0, None, "x")]


def _full_text_cost(tokens: int) -> float:
    from translators.contract import DOCUMENTED
    from translators.tokens import Token
    from translators.triton_stream import FrameStyle, TritonStream

    frames = TritonStream(
        request_id="a",
        model_name="m",
        details=False,
        max_tokens=10**6,
        contract=DOCUMENTED,
        style=FrameStyle(full_text=True),
    )
    token = Token(1, " token", 0.01, 0.0, 1)
    for _ in range(tokens):
        frames.frame(token)
    return _least_cost(lambda: frames.frame(token), 10)


def _copy_cost(size: int) -> float:
    buffer = bytearray(size)
    return _least_cost(lambda: bytes(buffer), 1000)


def _least_cost(work: Callable[[], object], times: int) -> float:
    """CPU seconds of one call: the least of ten runs, since a run is short and may be disturbed."""
    runs = []
    for _ in range(10):
        begin = time.process_time()
        for _ in range(times):
            work()
        runs.append((time.process_time() - begin) / times)
    return min(runs)


def p6(plan: Plan) -> list[Row]:
    """End to end on the real model, see `own_engine.p6`."""
    return own_engine.p6(plan.real_model, plan.rounds, plan.engine_tokens // 4)


def p7(plan: Plan) -> list[Row]:
    """What hostile neighbours do to the time between tokens of normal streams."""
    tokens = max(plan.tokens // 2, 50)
    samples = []
    with server(
        _READY, "tests.bench.serve_source", "paced", "{port}", core=_SERVER_CORE
    ) as running:
        load("mindie", running.port, plan.streams, tokens)
        for _ in range(plan.rounds):
            calm = load("mindie", running.port, plan.streams, tokens)
            with neighbours(running.port):
                rough = load("mindie", running.port, plan.streams, tokens)
            samples.append(percentile(rough["gaps"], 99) / percentile(calm["gaps"], 99))
    what = "p99 between tokens with 4 MB prompts, refused 40 MB bodies, 64 slow readers"
    return [Row("P7", what, tuple(samples), 1.2, None, "x")]


def p10(plan: Plan) -> list[Row]:
    """What 64 requests with a picture of 5 MB each do to the streams of text, and to memory."""
    tokens = max(plan.tokens // 2, 50)
    gaps, grown = [], []
    with (
        TemporaryDirectory() as root,
        server(
            *(_READY, "tests.bench.serve_source", "seeing", "{port}"),
            core=_SERVER_CORE,
            environment={MEDIA_ROOT: root},
        ) as running,
    ):
        load("mindie", running.port, plan.streams, tokens)
        before = running.memory
        for _ in range(plan.rounds):
            calm = load("mindie", running.port, plan.streams, tokens)
            with neighbours(running.port, "tests.bench.media_neighbours", root):
                seeing = load("mindie", running.port, plan.streams, tokens)
                grown.append((running.memory - before) / 2**20)
            gaps.append(percentile(seeing["gaps"], 99) / percentile(calm["gaps"], 99))
    what = "beside 64 requests at a time with a picture of 5 MB each"
    return [
        Row("P10", f"p99 between tokens of text {what}", tuple(gaps), 1.5, None, "x"),
        Row("P10", f"memory {what}", tuple(grown), 700, None, "MiB"),
    ]


@contextmanager
def neighbours(port: int, module: str = "tests.bench.neighbours", *more: str) -> Iterator[None]:
    """A process of other clients, as long as the block lasts.

    It gives way to the load generator, on whose core it is: what is measured is
    what the gateway does, not who gets a core.
    """
    words = [sys.executable, "-m", module, str(port), *more]
    process = subprocess.Popen(["taskset", "-c", str(_LOAD_CORE), "nice", "-n", "19", *words])
    try:
        time.sleep(1.0)
        yield
    finally:
        process.terminate()
        process.wait()


def p8(plan: Plan) -> list[Row]:
    """Aborts by phase, see `own_engine.p8`."""
    return own_engine.p8(plan.model, plan.rounds)


MEASURES: Final[dict[str, Callable[[Plan], list[Row]]]] = {
    "P1": p1,
    "P2": p2,
    "P3": p3,
    "P4": p4,
    "P5": p5,
    "P6": p6,
    "P7": p7,
    "P8": p8,
    "P9": p9,
    "P10": p10,
}
SMOKE: Final = ("P1", "P2", "P3", "P5", "P9")
"""Of CPU time and memory, which other work on the machine changes little."""
