"""vLLM's statistics, counted step by step: the same numbers as token by token."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from proxy.engines.step_statistics import count_decoded, counts_alike, gather
from proxy.engines.token_tap import TokenTap
from tests.proxy.engines.fakes import Processor, Vocabulary, event, reading, step_output


class Iteration:
    """vLLM's IterationStats, as far as a decode step goes."""

    def __init__(self) -> None:
        self.iteration_timestamp = object()
        self.num_generation_tokens = 0
        self.inter_token_latencies_iter: list[float] = []
        self.prompt_token_stats = SimpleNamespace(total=0)


def stats() -> SimpleNamespace:
    """vLLM's RequestStateStats."""
    return SimpleNamespace(num_generation_tokens=0, last_token_ts=0.0)


def count(state: Any, output: Any, timestamp: float, iteration: Any) -> None:
    """What vLLM does with the output of a request that decodes."""
    iteration.num_generation_tokens += len(output.new_token_ids)
    state.stats.num_generation_tokens += len(output.new_token_ids)
    iteration.inter_token_latencies_iter.append(timestamp - state.stats.last_token_ts)
    state.stats.last_token_ts = timestamp


def test_the_same_count_is_seen_to_be_the_same() -> None:
    assert counts_alike(count, Iteration, stats)


def test_a_count_of_something_more_is_seen() -> None:
    def more(state: Any, output: Any, timestamp: float, iteration: Any) -> None:
        count(state, output, timestamp, iteration)
        iteration.prompt_token_stats.total += 1

    def fewer(state: Any, output: Any, timestamp: float, iteration: Any) -> None:
        iteration.num_generation_tokens += 1

    def of_what_we_do_not_have(*args: Any) -> None:
        count(*args)
        assert args[1].num_nans_in_logits == 0

    for other in (more, fewer, of_what_we_do_not_have):
        assert not counts_alike(other, Iteration, stats)


def test_a_vllm_without_these_fields_counts_itself() -> None:
    assert not counts_alike(count, SimpleNamespace, stats)


def test_each_request_of_a_step_is_counted() -> None:
    states = [SimpleNamespace(stats=stats()) for _ in range(2)]
    iteration = Iteration()
    states[1].stats.last_token_ts = 1.5
    count_decoded(
        [(states[0], step_output("a", [1])), (states[1], step_output("b", [2, 3]))], 2.0, iteration
    )
    assert iteration.num_generation_tokens == 3
    assert iteration.inter_token_latencies_iter == [2.0, 0.5]
    assert [state.stats for state in states] == [
        SimpleNamespace(num_generation_tokens=1, last_token_ts=2.0),
        SimpleNamespace(num_generation_tokens=2, last_token_ts=2.0),
    ]


@pytest.mark.parametrize("alike", [True, False])
async def test_the_tap_counts_what_it_keeps_from_vllm(alike: bool) -> None:
    processor: Any = Processor()
    tap = TokenTap(processor, Vocabulary(), lambda reason: None, counts_alike=alike)
    read = reading("r")
    tap.runs["r"] = read.run
    state = SimpleNamespace(external_req_id="r", is_prefilling=False, stats=stats())
    processor.request_states["core-r"] = state
    iteration = Iteration()
    plain = step_output("core-r", [1])
    preempted = step_output("core-r", [2], events=[event("PREEMPTED", 1.0)])
    processor.process_outputs([plain], 1.0, iteration)
    processor.process_outputs([preempted], 2.0, iteration)
    processor.process_outputs([plain], 3.0, None)

    left_to_vllm = [(state, preempted, 2.0, iteration)]
    if alike:
        assert processor.counted == left_to_vllm
        assert iteration.num_generation_tokens == 1
    else:
        assert processor.counted == [(state, plain, 1.0, iteration), *left_to_vllm]
        assert iteration.num_generation_tokens == 0


class Logger:
    """A stat logger of vLLM's that keeps a histogram for each engine."""

    def __init__(self, *engines: int) -> None:
        self.registry = CollectorRegistry()
        family = Histogram("itl", "", ["engine"], buckets=[0.1, 0.25, 1.0], registry=self.registry)
        self.histogram: Any = {engine: family.labels(engine) for engine in engines}

    def record(self, engine: int, *values: float) -> None:
        for value in values:
            self.histogram[engine].observe(value)


def shown(logger: Logger) -> list[str]:
    """The metrics, without the time when they were made."""
    lines = generate_latest(logger.registry).decode().splitlines()
    return [line for line in lines if "_created" not in line]


def test_a_histogram_by_steps_shows_what_one_by_tokens_shows() -> None:
    by_tokens, by_steps = Logger(0, 1), Logger(0, 1)
    gather([by_steps, SimpleNamespace()], "histogram")
    for logger in (by_tokens, by_steps):
        logger.record(0, 0.5, 0.5, 0.125, 0.5)
        logger.record(1, 0.25, 64.0, 0.0)
        logger.record(1)
        logger.record(0, 0.1)
    assert shown(by_steps) == shown(by_tokens)
    assert 'itl_bucket{engine="0",le="0.25"} 2.0' in shown(by_steps)


def test_what_was_noted_before_a_failure_is_counted() -> None:
    class Failing(Logger):
        def record(self, engine: int, *values: float) -> None:
            super().record(engine, *values)
            raise ZeroDivisionError

    logger = Failing(0)
    gather([logger], "histogram")
    with pytest.raises(ZeroDivisionError):
        logger.record(0, 0.5, 0.25)
    assert logger.registry.get_sample_value("itl_count", {"engine": "0"}) == 2.0


def test_a_histogram_of_another_kind_stays() -> None:
    other = SimpleNamespace(histogram={0: object()}, record=lambda: None)
    before = dict(vars(other))
    gather([other], "histogram")
    assert vars(other) == before
