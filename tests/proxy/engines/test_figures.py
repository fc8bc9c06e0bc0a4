"""The scheduler's reports as one `Load`."""

from __future__ import annotations

from dataclasses import dataclass, field

from proxy.engines.base import Load, total
from proxy.engines.figures import SchedulerFigures


@dataclass
class PrefixCache:
    queries: int = 0
    hits: int = 0


@dataclass
class Report:
    num_running_reqs: int = 0
    num_waiting_reqs: int = 0
    num_skipped_waiting_reqs: int = 0
    kv_cache_usage: float = 0.0
    prefix_cache_stats: PrefixCache | None = field(default_factory=PrefixCache)


def test_before_the_first_report_nothing_runs() -> None:
    assert SchedulerFigures().load() == Load(0, 0, 0.0, 0, 0, 0)


def test_data_parallel_engines_are_added_up_and_their_cache_use_is_averaged() -> None:
    figures = SchedulerFigures()
    figures.scheduled(0, Report(num_running_reqs=3, num_waiting_reqs=1, kv_cache_usage=0.5))
    figures.scheduled(
        1, Report(num_running_reqs=2, num_skipped_waiting_reqs=4, kv_cache_usage=0.25)
    )
    load = figures.load()
    assert (load.running, load.waiting, load.kv_cache_usage) == (5, 5, 0.375)


def test_preemptions_are_summed_over_engines_and_kept_by_the_next_report() -> None:
    figures = SchedulerFigures()
    figures.preempted(0, 2)
    figures.preempted(1, 1)
    figures.scheduled(0, Report())
    figures.preempted(0, 0)
    assert figures.load().preemptions == 3
    assert figures.of(0).preemptions == 2


def test_an_engine_is_asked_for_by_its_index() -> None:
    figures = SchedulerFigures()
    figures.scheduled(1, Report(num_running_reqs=7))
    assert (figures.of(1).running, figures.of(0).running) == (7, 0)


def test_what_no_engine_knows_stays_unknown() -> None:
    assert total([Load(running=1), Load(running=2)]) == Load(running=3)
    assert total([Load(preemptions=1), Load()]).preemptions == 1


def test_the_latest_report_of_an_engine_counts() -> None:
    figures = SchedulerFigures()
    figures.scheduled(0, Report(num_running_reqs=3, kv_cache_usage=0.5))
    figures.scheduled(0, Report())
    assert (figures.load().running, figures.load().kv_cache_usage) == (0, 0.0)


def test_prefix_cache_counts_are_sums_since_the_start() -> None:
    figures = SchedulerFigures()
    figures.scheduled(0, Report(prefix_cache_stats=PrefixCache(queries=10, hits=4)))
    figures.scheduled(1, Report(prefix_cache_stats=PrefixCache(queries=1, hits=1)))
    figures.scheduled(0, Report(prefix_cache_stats=None))
    assert (figures.load().prefix_queries, figures.load().prefix_hits) == (11, 5)
