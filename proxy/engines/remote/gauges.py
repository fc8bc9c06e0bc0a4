"""The few figures of a vLLM server's /metrics page that the gateway uses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_LINE: Final = rb"^%b(?:\{([^\n]*)\})? (\d+(?:\.\d*)?(?:e[+-]?\d+)?)$"
_LABEL: Final = re.compile(rb'(\w+)="([^"]*)"')


def _sample(name: bytes) -> re.Pattern[bytes]:
    return re.compile(_LINE % re.escape(name), re.MULTILINE)


_RUNNING: Final = _sample(b"vllm:num_requests_running")
_WAITING: Final = _sample(b"vllm:num_requests_waiting")
_KV_USAGE: Final = _sample(b"vllm:kv_cache_usage_perc")
_QUEUE_SUM: Final = _sample(b"vllm:request_queue_time_seconds_sum")
_QUEUE_COUNT: Final = _sample(b"vllm:request_queue_time_seconds_count")
_PREEMPTIONS: Final = _sample(b"vllm:num_preemptions_total")
_PREFIX_QUERIES: Final = _sample(b"vllm:prefix_cache_queries_total")
_PREFIX_HITS: Final = _sample(b"vllm:prefix_cache_hits_total")
_CACHE: Final = _sample(b"vllm:cache_config_info")


@dataclass(frozen=True, slots=True)
class Gauges:
    """One reading, all data-parallel engines of the server together."""

    running: int
    waiting: int
    kv_cache_usage: float
    """Mean over the engines, 0 to 1."""
    queue_seconds: float
    """Sum over all requests since the server's start, and their number."""
    queue_count: float
    preemptions: int | None
    """None, as with the next two, when the page does not tell."""
    prefix_queries: int | None
    prefix_hits: int | None
    kv_blocks: int | None
    """KV-cache blocks that requests can fill; None when the page does not tell."""
    block_size: int | None


def read_gauges(page: bytes) -> Gauges | None:
    """The figures in a metrics page; None when it has none of vLLM's."""
    running = list(_values(_RUNNING, page))
    if not running:
        return None
    usage = list(_values(_KV_USAGE, page))
    return Gauges(
        running=round(sum(running)),
        waiting=round(sum(_values(_WAITING, page))),
        kv_cache_usage=sum(usage) / max(len(usage), 1),
        queue_seconds=sum(_values(_QUEUE_SUM, page)),
        queue_count=sum(_values(_QUEUE_COUNT, page)),
        preemptions=_sum(_PREEMPTIONS, page),
        prefix_queries=_sum(_PREFIX_QUERIES, page),
        prefix_hits=_sum(_PREFIX_HITS, page),
        kv_blocks=_blocks(page),
        block_size=_number(_cache_labels(page).get(b"block_size")),
    )


def _values(sample: re.Pattern[bytes], page: bytes) -> Iterator[float]:
    return (float(match[2]) for match in sample.finditer(page))


def _sum(sample: re.Pattern[bytes], page: bytes) -> int | None:
    values = list(_values(sample, page))
    return round(sum(values)) if values else None


def _cache_labels(page: bytes) -> dict[bytes, bytes]:
    match = _CACHE.search(page)
    return dict(_LABEL.findall(match[1])) if match is not None and match[1] else {}


def _blocks(page: bytes) -> int | None:
    """Over all engines; each keeps one block for itself, which no request can fill."""
    labels = (dict(_LABEL.findall(match[1] or b"")) for match in _CACHE.finditer(page))
    counts = [_number(one.get(b"num_gpu_blocks")) for one in labels]
    known = [count - 1 for count in counts if count]
    return sum(known) if known else None


def _number(text: bytes | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None
