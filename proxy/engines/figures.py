"""vLLM's scheduler statistics, one report per engine step, as the gateway's `Load`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final, Protocol

from proxy.engines.base import Load, total

_IDLE: Final = Load(preemptions=0, prefix_queries=0, prefix_hits=0)


class PrefixCacheReport(Protocol):
    """Prompt tokens since the report before."""

    queries: int
    hits: int


class SchedulerReport(Protocol):
    """vLLM's SchedulerStats, as far as it is read."""

    num_running_reqs: int
    num_waiting_reqs: int
    num_skipped_waiting_reqs: int
    kv_cache_usage: float
    prefix_cache_stats: Any
    """A PrefixCacheReport, or None."""


class SchedulerFigures:
    """What the schedulers of all data-parallel engines last said, and sums since the start."""

    def __init__(self) -> None:
        self._loads: dict[int, Load] = {}

    def of(self, engine: int) -> Load:
        """One engine, by its index."""
        return self._own(engine)

    def _own(self, engine: int) -> Load:
        """What was reported here."""
        return self._loads.get(engine, _IDLE)

    def scheduled(self, engine: int, report: SchedulerReport) -> None:
        """One report of one engine."""
        before = self._own(engine)
        cache: PrefixCacheReport | None = report.prefix_cache_stats
        self._loads[engine] = Load(
            running=report.num_running_reqs,
            waiting=report.num_waiting_reqs + report.num_skipped_waiting_reqs,
            kv_cache_usage=report.kv_cache_usage,
            preemptions=before.preemptions,
            prefix_queries=(before.prefix_queries or 0) + (cache.queries if cache else 0),
            prefix_hits=(before.prefix_hits or 0) + (cache.hits if cache else 0),
        )

    def preempted(self, engine: int, requests: int) -> None:
        """An engine has put this many requests back into its queue."""
        if requests:
            before = self._own(engine)
            self._loads[engine] = replace(before, preemptions=(before.preemptions or 0) + requests)

    def load(self) -> Load:
        """All engines together, at this moment."""
        return total(self._loads.values()) if self._loads else _IDLE
