"""MindIE's metric names: as its dashboards read them, and true after any run."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from proxy.engines.base import EngineRequest, Load
from proxy.engines.stub import STUB_INFO, StubEngine, echo, silent
from proxy.mindie_metrics import ABSENT, RATE_WINDOW, TABLE, MindieMetrics, Rate
from tests.proxy.handlers.test_generate import GENERATE, INFER, infer_body
from tests.support import (
    MODEL,
    STOP_PATH,
    STREAM_PATH,
    RunningGateway,
    connection,
    eventually,
    generate_body,
    get,
    only_stream,
    post,
    request_bytes,
    scripted,
    serving,
    token,
)
from translators.errors import GenerationError, IncompleteGeneration
from translators.tokens import FinishReason, Token

# What dashboards were built on, written down once more: a change of the table must show.
COUNTERS = {
    "request_received_total",
    "request_success_total",
    "request_failed_total",
    "prompt_tokens_total",
    "generation_tokens_total",
    "num_preemptions_total",
}
GAUGES = {
    "num_requests_running",
    "num_requests_waiting",
    "num_requests_swapped",
    "avg_prompt_throughput_toks_per_s",
    "avg_generation_throughput_toks_per_s",
    "failed_request_perc",
    "npu_cache_usage_perc",
    "cpu_cache_usage_perc",
    "npu_prefix_cache_hit_rate",
    "all_radix_match_num",
    "npu_radix_match_hit_num",
}
TOKENS = "10 50 100 200 500 1000 2000 5000 10000 16000 20000 32000 50000 64000 128000 +Inf"
BUCKETS = {
    "time_to_first_token_seconds": "0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 1 2.5 "
    "5 7.5 10 +Inf",
    "time_per_output_token_seconds": "0.01 0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.4 0.5 0.75 1 2.5 "
    "+Inf",
    "e2e_request_latency_seconds": "1 2.5 5 10 15 20 30 40 50 60 +Inf",
    "request_prompt_tokens": TOKENS,
    "request_generation_tokens": TOKENS,
}


def theirs(page: str) -> dict[str, Any]:
    """MindIE's families on the page, by the name in their samples."""
    names = {figure.name.removesuffix("_total") for figure in TABLE} | {*ABSENT}
    families = {each.name: each for each in text_string_to_metric_families(page)}
    return {name: families[name] for name in names if name in families}


async def shown(running: RunningGateway) -> dict[str, float]:
    """MindIE's figures without the buckets."""
    page = (await get(running.port, "/metrics")).body.decode()
    return {
        sample.name: sample.value
        for family in theirs(page).values()
        for sample in family.samples
        if "le" not in sample.labels
    }


async def test_names_types_labels_and_buckets_are_mindies() -> None:
    async with serving(mindie_metrics=True) as running:
        page = (await get(running.port, "/metrics")).body.decode()
    families = theirs(page)
    for family in families.values():
        assert {s.labels["model_name"] for s in family.samples} == {MODEL}
        assert {frozenset(s.labels) - {"le"} for s in family.samples} == {frozenset({"model_name"})}
    by_kind: dict[str, set[str]] = {}
    for name, family in families.items():
        by_kind.setdefault(family.type, set()).add(name)
    assert {f"{name}_total" for name in by_kind["counter"]} == COUNTERS
    assert by_kind["gauge"] == GAUGES - {*ABSENT}
    assert by_kind["histogram"] == {*BUCKETS}
    for name, bounds in BUCKETS.items():
        found = [s.labels["le"] for s in families[name].samples if s.name.endswith("_bucket")]
        assert found == bounds.split(), name
    for name in COUNTERS:
        assert f"# TYPE {name} counter\n" in page
        assert f"\n{name.removesuffix('_total')}_created" not in page


def test_every_name_is_shown_or_absent_with_a_reason() -> None:
    names = {figure.name for figure in TABLE}
    assert names | {*ABSENT} == COUNTERS | GAUGES | {*BUCKETS}
    assert not names & {*ABSENT}
    assert all(ABSENT.values())


async def test_they_are_a_setting_and_off_by_default() -> None:
    async with serving() as running:
        await post(running.port, generate_body())
        assert await shown(running) == {}


async def test_a_request_that_succeeds() -> None:
    script = scripted(
        token("a", latency=9.0), token("b", latency=0.03), token("c", finish=FinishReason.END)
    )
    async with serving(StubEngine(script), mindie_metrics=True) as running:
        await post(running.port, generate_body("one two three four", 9))
        figures = await shown(running)
    assert figures["request_received_total"] == figures["request_success_total"] == 1
    assert figures["request_failed_total"] == figures["failed_request_perc"] == 0
    assert figures["prompt_tokens_total"] == 4
    assert figures["generation_tokens_total"] == 3
    assert figures["time_to_first_token_seconds_count"] == 1
    # The first token's wait is no time between tokens.
    assert figures["time_per_output_token_seconds_count"] == 2
    assert figures["time_per_output_token_seconds_sum"] == pytest.approx(0.03)
    assert figures["e2e_request_latency_seconds_count"] == 1
    assert (figures["request_prompt_tokens_sum"], figures["request_prompt_tokens_count"]) == (4, 1)
    assert figures["request_generation_tokens_sum"] == 3
    assert figures["avg_prompt_throughput_toks_per_s"] == 4 / RATE_WINDOW
    assert figures["avg_generation_throughput_toks_per_s"] == 3 / RATE_WINDOW


@pytest.mark.parametrize("path", [STREAM_PATH, GENERATE])
async def test_a_request_for_an_unknown_model_is_not_counted(path: str) -> None:
    async with serving(mindie_metrics=True) as running:
        await post(running.port, generate_body(), path.replace(MODEL, "other"))
        figures = await shown(running)
    assert figures["request_received_total"] == figures["request_failed_total"] == 0


async def test_a_refused_body_was_received_and_failed() -> None:
    async with serving(mindie_metrics=True) as running:
        for path in (STREAM_PATH, GENERATE, INFER):
            await post(running.port, b"{", path)
        await post(running.port, {"id": "x"}, STOP_PATH)
        await post(running.port, generate_body())
        figures = await shown(running)
    assert figures["request_received_total"] == 4
    assert figures["request_failed_total"] == 3
    assert figures["failed_request_perc"] == 0.75
    # What the engine never took has no length.
    assert figures["request_prompt_tokens_count"] == 1
    assert figures["request_generation_tokens_count"] == 1


async def test_a_stopped_request_is_a_success_and_one_that_leaves_is_not() -> None:
    async with serving(StubEngine(silent), mindie_metrics=True) as running:
        async with connection(running.port) as client:
            client.send(request_bytes({"id": "a", **generate_body()}))
            await only_stream(running.engine)
            assert (await shown(running))["num_requests_running"] == 1
            running.gateway.live.stop("a")
            assert (await client.response()).complete
        async with connection(running.port) as client:
            client.send(request_bytes(generate_body()))
            await only_stream(running.engine)
        await eventually(lambda: running.outcomes == {"succeeded": 1, "cancelled": 1})
        figures = await shown(running)
    assert (figures["request_success_total"], figures["request_failed_total"]) == (1, 1)


async def test_requests_that_wait_before_the_engine_are_waiting() -> None:
    async with (
        serving(StubEngine(silent), max_running=1, mindie_metrics=True) as running,
        connection(running.port) as one,
        connection(running.port) as two,
    ):
        one.send(request_bytes(generate_body()))
        await eventually(lambda: running.engine.live)
        two.send(request_bytes(generate_body()))
        await eventually(lambda: running.gateway.admission.waiting == 1)
        figures = await shown(running)
    assert (figures["num_requests_running"], figures["num_requests_waiting"]) == (1, 1)


def books(load: Load, clock: Any = lambda: 0.0) -> dict[str, float]:
    metrics = MindieMetrics("m", load=lambda: load, waiting=lambda: load.waiting, clock=clock)
    return {
        sample.name: sample.value
        for family in metrics.collect()
        for sample in family.samples
        if "le" not in sample.labels
    }


def test_the_engines_figures() -> None:
    load = Load(3, 2, 0.25, preemptions=7, prefix_queries=100, prefix_hits=40)
    figures = books(load)
    assert figures["num_requests_running"] == 3
    assert figures["num_requests_waiting"] == 2
    assert figures["npu_cache_usage_perc"] == 0.25
    assert figures["num_preemptions_total"] == 7
    assert figures["all_radix_match_num"] == 100
    assert figures["npu_radix_match_hit_num"] == 40
    assert figures["npu_prefix_cache_hit_rate"] == 0.4


def test_what_an_engine_does_not_say_is_absent_and_not_zero() -> None:
    silent_ones = {
        "num_preemptions_total",
        "all_radix_match_num",
        "npu_radix_match_hit_num",
        "npu_prefix_cache_hit_rate",
    }
    assert not silent_ones & {*books(Load())}
    known = books(Load(preemptions=0, prefix_queries=0, prefix_hits=0))
    assert {known[name] for name in silent_ones} == {0}


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_rate_is_that_of_the_last_seconds_and_falls_back_to_zero() -> None:
    clock = Clock()
    rate = Rate(clock)
    rate.add(30)
    clock.now += 0.9
    rate.add(20)
    assert rate.per_second() == 50 / RATE_WINDOW
    clock.now = 100.0 + RATE_WINDOW - 1
    rate.add(10)
    assert rate.per_second() == 60 / RATE_WINDOW
    clock.now = 100.0 + RATE_WINDOW
    assert rate.per_second() == 10 / RATE_WINDOW
    clock.now += 1_000_000
    assert rate.per_second() == 0


@given(st.lists(st.tuples(st.floats(0, 30), st.integers(0, 9)), max_size=30))
def test_a_rate_holds_exactly_what_came_within_its_window(steps: list[tuple[float, int]]) -> None:
    clock = Clock()
    rate = Rate(clock)
    came: list[tuple[int, int]] = []
    for wait, count in steps:
        clock.now += wait
        rate.add(count)
        came.append((int(clock.now), count))
    recent = sum(count for second, count in came if second > int(clock.now) - RATE_WINDOW)
    assert rate.per_second() == recent / RATE_WINDOW


@pytest.mark.parametrize("value", [0.0, 0.005, 0.0051, 1e9])
def test_a_bucket_holds_what_is_at_most_its_bound(value: float) -> None:
    metrics = MindieMetrics("m", load=Load, waiting=lambda: 0, clock=lambda: 0.0)
    metrics.first_token(1, value)
    family = next(f for f in metrics.collect() if f.name == "time_to_first_token_seconds")
    for sample in family.samples:
        if sample.name.endswith("_bucket"):
            bound = float(sample.labels["le"].replace("+Inf", "inf"))
            assert sample.value == (1 if value <= bound else 0)


# Whatever clients and engines do ------------------------------------------------


async def moody(request: EngineRequest) -> AsyncIterator[Token]:
    """An engine that answers, hangs, or breaks, by the first word of the prompt."""
    word = request.text.partition(" ")[0]
    if word == "break":
        yield token("half")
        raise IncompleteGeneration("broken by a test")
    if word == "hang":
        yield token("half")
        await asyncio.Event().wait()
    async for each in echo(request):
        yield each
        await asyncio.sleep(0)


BODIES: tuple[Any, ...] = (
    generate_body("fine one", 5),
    generate_body("break", 5),
    generate_body("fine", 5, top_p=7),
    generate_body("", 5),
    {"id": "stop-me", **generate_body("hang", 5)},
    {**generate_body("fine words end", 50), "stop_words": ["end"]},
    b"{",
    b"",
)
PATHS = (STREAM_PATH, GENERATE, INFER, STREAM_PATH.replace(MODEL, "other"))


async def visitor(running: RunningGateway, chance: random.Random) -> None:
    """One client: sends something somewhere, and stays for the answer or leaves early."""
    path = chance.choice(PATHS)
    body = infer_body() if path == INFER and chance.random() < 0.5 else chance.choice(BODIES)
    async with connection(running.port) as client:
        client.send(request_bytes(body, path))
        hangs = isinstance(body, dict) and body.get("id") == "stop-me"
        if hangs or chance.random() < 0.3:
            await asyncio.sleep(chance.random() * 0.02)
            await client.reset()
        else:
            await client.response()


@pytest.mark.parametrize("seed", range(3))
async def test_the_books_balance_after_any_run_and_the_gauges_are_back_at_zero(seed: int) -> None:
    chance = random.Random(seed)
    engine = StubEngine(moody, replace(STUB_INFO, max_num_seqs=4))
    async with serving(engine, max_requests=12, max_running=6, mindie_metrics=True) as running:
        for number in range(8):
            engine.refusal = GenerationError("too much") if number == 5 else None
            visits = [visitor(running, chance) for _ in range(25)]
            stops = [post(running.port, {"id": "stop-me"}, STOP_PATH) for _ in range(3)]
            await asyncio.gather(*visits, *stops)
        await eventually(
            lambda: running.metric("mindie_gateway_requests_in_flight") == 0 and not engine.live
        )
        figures = await shown(running)
        received = running.metric("mindie_gateway_requests_received_total")
        assert received == sum(running.outcomes.values()) == 8 * 28
        assert len(running.outcomes) == 4, running.outcomes
    ended = figures["request_success_total"] + figures["request_failed_total"]
    assert 0 < figures["request_received_total"] == ended
    assert figures["failed_request_perc"] == figures["request_failed_total"] / ended
    for gauge in ("num_requests_running", "num_requests_waiting", "npu_cache_usage_perc"):
        assert figures[gauge] == 0, gauge
    assert figures["e2e_request_latency_seconds_count"] == figures["request_success_total"]
    assert figures["request_generation_tokens_sum"] == figures["generation_tokens_total"]
    assert figures["request_prompt_tokens_sum"] == figures["prompt_tokens_total"]
