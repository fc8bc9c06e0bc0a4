"""One metrics page of several workers.

Each worker tells its figures; what is the engine's, and so the same for all, only
the first one tells. So nearly everything is a sum. `_RULES` has the others. vLLM's own
gauges are those of the worker that heard from the engine last.

Counters never go back: what a worker had counted when it died goes on with the
one that takes its place, and the requests that died with it have failed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

READY: Final = "mindie_gateway_ready"
_FAILED_SHARE: Final = "failed_request_perc"
_RECEIVED: Final = "request_received_total"
_SUCCESS: Final = "request_success_total"
_FAILED: Final = "request_failed_total"
_CREATED: Final = "_created"

_RULES: Final[dict[str, Callable[[Iterable[float]], float]]] = {
    READY: min,
    "mindie_gateway_engine_stalled": max,
    "process_start_time_seconds": min,
    "process_max_fds": max,
    "python_info": max,
}

_RECEIVED_HERE: Final = "mindie_gateway_requests_received_total"
_FINISHED_HERE: Final = "mindie_gateway_requests_finished_total"
_VLLM: Final = "vllm:"
_PER_PLACE: Final = "mindie_gateway_worker_restarts"
"""A worker knows it by itself."""

Figures = list[list[Any]]
"""Families: name, meaning, type, unit and samples; a sample: name, labels and value."""
_Labels = tuple[tuple[str, str], ...]
_Key = tuple[str, _Labels]


def figures(*registries: CollectorRegistry) -> Figures:
    """All figures of some registries, ready to be sent as JSON."""
    return [
        [
            *(family.name, family.documentation, family.type, family.unit),
            [[sample.name, dict(sample.labels), sample.value] for sample in family.samples],
        ]
        for registry in registries
        for family in registry.collect()
    ]


def merged(pages: Sequence[Figures], *, newest: int = 0, whole: bool) -> bytes:
    """Prometheus text of all workers together. They are not ready unless it is `whole`.

    `newest` is the page of the worker that heard from the engine last.
    """
    rest = [page if i == newest else _without_stale(page) for i, page in enumerate(pages)]
    return generate_latest(_registry(rest, ready=whole))


def _without_stale(page: Figures) -> Figures:
    return [each for each in page if not (each[2] == "gauge" and each[0].startswith(_VLLM))]


def lasting(page: Figures | None) -> Figures:
    """What a worker's figures are worth when it does not answer: no gauge, but all it counted."""
    return [
        family
        for family in page or []
        if family[2] in ("counter", "histogram") and family[0] != _PER_PLACE
    ]


def inherited(page: Figures | None) -> Figures:
    """What goes on of a dead worker's figures. Its requests have ended: the books balance."""
    # Its own and what it had inherited are two samples of one series so far.
    kept = figures(_registry([lasting(page)], ready=True))
    found = {
        (sample, *_sorted(labels)): value
        for *_, samples in kept
        for sample, labels, value in samples
    }
    return figures(_registry([kept, [*_failed_here(found), *_failed_mindie(found)]], ready=True))


def _registry(pages: Sequence[Figures], *, ready: bool) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(_Merged(pages, ready=ready))
    return registry


def _failed_here(found: Mapping[tuple[Any, ...], float]) -> Iterator[list[Any]]:
    lost = {
        dict(labels)["route"]: value
        for (sample, *labels), value in found.items()
        if sample == _RECEIVED_HERE
    }
    for (sample, *labels), value in found.items():
        if sample == _FINISHED_HERE:
            lost[dict(labels)["route"]] -= value
    samples = [[_FINISHED_HERE, {"outcome": "failed", "route": r}, n] for r, n in lost.items() if n]
    if samples:
        yield [_FINISHED_HERE.removesuffix("_total"), "", "counter", "", samples]


def _failed_mindie(found: Mapping[tuple[Any, ...], float]) -> Iterator[list[Any]]:
    for (sample, *labels), received in found.items():
        if sample == _RECEIVED:
            ended = sum(found.get((name, *labels), 0.0) for name in (_SUCCESS, _FAILED))
            samples = [[_FAILED, dict(labels), received - ended]]
            yield [_FAILED.removesuffix("_total"), "", "counter", "", samples]


class _Merged(Collector):
    def __init__(self, pages: Sequence[Figures], *, ready: bool) -> None:
        self._pages = pages
        self._ready = ready

    def collect(self) -> Iterable[Metric]:
        families: dict[str, Metric] = {}
        values: dict[str, dict[_Key, list[float]]] = {}
        for name, meaning, kind, unit, samples in (each for page in self._pages for each in page):
            families.setdefault(name, Metric(name, meaning, kind, unit))
            found = values.setdefault(name, {})
            for sample, labels, value in samples:
                found.setdefault((sample, _sorted(labels)), []).append(value)
        totals = {
            name: {key: _combined(key[0], each) for key, each in found.items()}
            for name, found in values.items()
        }
        self._correct(totals)
        for name, family in families.items():
            for (sample, labels), value in totals[name].items():
                family.add_sample(sample, dict(labels), value)
            yield family

    def _correct(self, totals: dict[str, dict[_Key, float]]) -> None:
        """What no rule for single figures gives."""
        if not self._ready:
            totals[READY] = dict.fromkeys(totals.get(READY, {}), 0.0)
        for _, labels in totals.get(_FAILED_SHARE, {}):
            every = {key: value for found in totals.values() for key, value in found.items()}
            received = every.get((_RECEIVED, labels), 0.0)
            share = every.get((_FAILED, labels), 0.0) / received if received else 0.0
            totals[_FAILED_SHARE][_FAILED_SHARE, labels] = share


def _sorted(labels: Mapping[str, str]) -> _Labels:
    """Labels as a key: pages need not have them in the same order."""
    return tuple(sorted(labels.items()))


def _combined(sample: str, values: list[float]) -> float:
    rule = min if sample.endswith(_CREATED) else _RULES.get(sample, sum)
    return float(rule(values))
