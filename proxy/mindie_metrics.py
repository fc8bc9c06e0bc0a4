"""MindIE's own metric names, so that existing dashboards keep working (a setting).

One label, `model_name`, as MindIE has it. `TABLE` is all there is; what vLLM has
no figure for is in `ABSENT`, and left out rather than made up.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from proxy.engines.base import Load

_LABELS: Final = ["model_name"]
RATE_WINDOW: Final = 10
"""Seconds over which the running averages of tokens per second are taken."""

_TOKENS: Final = (
    *(10, 50, 100, 200, 500, 1000, 2000, 5000, 10000),
    *(16000, 20000, 32000, 50000, 64000, 128000),
)


class Figure(NamedTuple):
    """One metric. Counters have their `_total` in the name; buckets are upper bounds."""

    name: str
    kind: str
    meaning: str
    buckets: tuple[float, ...] = ()


TABLE: Final = (
    Figure(
        "request_received_total",
        "counter",
        "Requests for a served model whose handling began, before the body was parsed.",
    ),
    Figure(
        "request_success_total",
        "counter",
        "Requests that got their last token, the stopped ones included.",
    ),
    Figure(
        "request_failed_total",
        "counter",
        "Every other end: failed, cancelled by the client, or refused.",
    ),
    Figure("prompt_tokens_total", "counter", "Prompt tokens that the engine took."),
    Figure(
        "generation_tokens_total", "counter", "Generated tokens, added when their request ends."
    ),
    Figure("num_preemptions_total", "counter", "Requests that the scheduler put back to wait."),
    Figure("num_requests_running", "gauge", "Requests that the engine runs."),
    Figure("num_requests_waiting", "gauge", "Requests that wait, in the engine or before it."),
    Figure(
        "avg_prompt_throughput_toks_per_s",
        "gauge",
        f"Prompt tokens per second that were prefilled in the last {RATE_WINDOW} seconds.",
    ),
    Figure(
        "avg_generation_throughput_toks_per_s",
        "gauge",
        f"Generated tokens per second in the last {RATE_WINDOW} seconds.",
    ),
    Figure("failed_request_perc", "gauge", "Failed requests of all received ones, 0 to 1."),
    Figure("npu_cache_usage_perc", "gauge", "Used share of the device's KV cache, 0 to 1."),
    Figure(
        "npu_prefix_cache_hit_rate",
        "gauge",
        "Prompt tokens found in the prefix cache of those looked up, 0 to 1.",
    ),
    Figure("all_radix_match_num", "gauge", "Prompt tokens looked up in the prefix cache."),
    Figure("npu_radix_match_hit_num", "gauge", "Prompt tokens found in the prefix cache."),
    Figure(
        "time_to_first_token_seconds",
        "histogram",
        "From the start of handling to the first token.",
        (
            *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1),
            *(0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
        ),
    ),
    Figure(
        "time_per_output_token_seconds",
        "histogram",
        "From a token to the next one of its request, by the engine's clock.",
        (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5),
    ),
    Figure(
        "e2e_request_latency_seconds",
        "histogram",
        "From the start of handling to the end of a request that succeeded.",
        (1.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    ),
    Figure("request_prompt_tokens", "histogram", "Prompt tokens of a request.", _TOKENS),
    Figure("request_generation_tokens", "histogram", "Generated tokens of a request.", _TOKENS),
)
ABSENT: Final = {
    "num_requests_swapped": "vLLM's scheduler swaps no request to host memory",
    "cpu_cache_usage_perc": "so there is no KV cache of swapped requests",
}


class _Histogram:
    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def buckets(self) -> Iterator[tuple[str, float]]:
        seen = 0
        for bound, count in zip((*self._bounds, None), self._counts, strict=True):
            seen += count
            yield ("+Inf" if bound is None else f"{bound:g}"), seen


class Rate:
    """How many per second, on average over the last `RATE_WINDOW` seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._slots = [0] * RATE_WINDOW
        self._second = int(clock())

    def add(self, count: int = 1) -> None:
        self._slots[self._now()] += count

    def per_second(self) -> float:
        self._now()
        return sum(self._slots) / RATE_WINDOW

    def _now(self) -> int:
        """The slot of this second, emptied of what was in it a window ago."""
        second = int(self._clock())
        for passed in range(max(self._second, second - RATE_WINDOW) + 1, second + 1):
            self._slots[passed % RATE_WINDOW] = 0
        self._second = second
        return second % RATE_WINDOW


class MindieMetrics(Collector):
    """The books behind the names. `load` and `waiting` are asked when somebody looks."""

    def __init__(
        self,
        model_name: str,
        *,
        load: Callable[[], Load],
        waiting: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._labels = [model_name]
        self._load = load
        self._waiting = waiting
        self._counts = {f.name: 0 for f in TABLE if f.kind == "counter"}
        self._histograms = {f.name: _Histogram(f.buckets) for f in TABLE if f.buckets}
        self._prompt_rate = Rate(clock)
        self._generation_rate = Rate(clock)
        self._per_token = self._histograms["time_per_output_token_seconds"]

    def received(self) -> None:
        """Handling of a request for a served model has begun."""
        self._counts["request_received_total"] += 1

    def accepted(self, prompt_tokens: int) -> None:
        """The engine has taken a request."""
        self._counts["prompt_tokens_total"] += prompt_tokens
        self._histograms["request_prompt_tokens"].observe(prompt_tokens)

    def first_token(self, prompt_tokens: int, seconds: float) -> None:
        """A request's first token is there, `seconds` after its handling began."""
        self._prompt_rate.add(prompt_tokens)
        self._generation_rate.add()
        self._histograms["time_to_first_token_seconds"].observe(seconds)

    def next_token(self, latency: float) -> None:
        """A further token, `latency` seconds after the one before."""
        self._generation_rate.add()
        self._per_token.observe(latency)

    def generated(self, tokens: int) -> None:
        """The tokens of a request that has ended."""
        self._counts["generation_tokens_total"] += tokens
        self._histograms["request_generation_tokens"].observe(tokens)

    def ended(self, *, succeeded: bool, seconds: float) -> None:
        """The one end of a received request."""
        if succeeded:
            self._counts["request_success_total"] += 1
            self._histograms["e2e_request_latency_seconds"].observe(seconds)
        else:
            self._counts["request_failed_total"] += 1

    def collect(self) -> Iterable[Metric]:
        values = {**self._counts, **self._engine(self._load()), **self._shares()}
        for figure in TABLE:
            if figure.kind == "histogram":
                yield self._histogram(figure)
            elif (value := values[figure.name]) is not None:
                family = CounterMetricFamily if figure.kind == "counter" else GaugeMetricFamily
                metric = family(figure.name, figure.meaning, labels=_LABELS)
                metric.add_metric(self._labels, value)
                yield metric

    def _engine(self, load: Load) -> dict[str, float | None]:
        """None for what this engine does not say."""
        return {
            "num_preemptions_total": load.preemptions,
            "num_requests_running": load.running,
            "num_requests_waiting": self._waiting(),
            "npu_cache_usage_perc": load.kv_cache_usage,
            "npu_prefix_cache_hit_rate": _share(load.prefix_hits, load.prefix_queries),
            "all_radix_match_num": load.prefix_queries,
            "npu_radix_match_hit_num": load.prefix_hits,
        }

    def _shares(self) -> dict[str, float | None]:
        failed = self._counts["request_failed_total"]
        return {
            "avg_prompt_throughput_toks_per_s": self._prompt_rate.per_second(),
            "avg_generation_throughput_toks_per_s": self._generation_rate.per_second(),
            "failed_request_perc": _share(failed, self._counts["request_received_total"]),
        }

    def _histogram(self, figure: Figure) -> Metric:
        books = self._histograms[figure.name]
        metric = HistogramMetricFamily(figure.name, figure.meaning, labels=_LABELS)
        metric.add_metric(self._labels, buckets=list(books.buckets()), sum_value=books.sum)
        return metric


def _share(part: int | None, whole: int | None) -> float | None:
    """From 0 to 1; 0 of nothing; None where one of the two is not known."""
    if part is None or whole is None:
        return None
    return part / whole if whole else 0.0
