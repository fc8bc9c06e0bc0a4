"""Several workers' figures as one page."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.parser import text_string_to_metric_families

from proxy.engines.base import Load
from proxy.merged_metrics import Figures, figures, inherited, lasting, merged
from proxy.metrics import Metrics
from proxy.mindie_metrics import MindieMetrics
from translators.errors import IncompleteGeneration


def page(**gauges: float) -> Figures:
    registry = CollectorRegistry()
    for name, value in gauges.items():
        Gauge(name, "Some gauge.", registry=registry).set(value)
    return figures(registry)


def samples(text: bytes) -> dict[tuple[str, ...], float]:
    found: dict[tuple[str, ...], float] = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            key = (sample.name, *map("=".join, sorted(sample.labels.items())))
            assert key not in found, "a series is there once"
            found[key] = sample.value
    return found


def test_one_worker_alone_looks_as_it_does_unmerged() -> None:
    metrics = Metrics()
    with metrics.account("route") as account:
        account.succeeded()
    assert merged([figures(metrics.registry)], whole=True) == merged_by_hand(metrics)


def merged_by_hand(metrics: Metrics) -> bytes:
    from prometheus_client import generate_latest

    return generate_latest(metrics.registry)


def test_counters_histograms_and_gauges_are_sums() -> None:
    pages = []
    for number in (1, 2):
        registry = CollectorRegistry()
        counter = Counter("c", "Some counter.", ["of"], registry=registry)
        counter.labels("both").inc(number)
        counter.labels(f"only{number}").inc()
        Gauge("g", "Some gauge.", registry=registry).set(10 * number)
        Histogram("h", "Some times.", buckets=(1, 5), registry=registry).observe(3 * number)
        pages.append(figures(registry))
    found = samples(merged(pages, whole=True))
    assert found["c_total", "of=both"] == 3
    assert found["c_total", "of=only1"] == found["c_total", "of=only2"] == 1
    assert found["g",] == 30
    assert found["h_sum",] == 9
    assert [found["h_bucket", f"le={le}"] for le in ("1.0", "5.0", "+Inf")] == [0, 1, 2]


def test_what_is_no_sum() -> None:
    one = page(
        mindie_gateway_ready=1,
        mindie_gateway_engine_stalled=0,
        process_start_time_seconds=20,
        process_max_fds=1024,
    )
    other = page(
        mindie_gateway_ready=0,
        mindie_gateway_engine_stalled=1,
        process_start_time_seconds=10,
        process_max_fds=1024,
    )
    found = samples(merged([one, other], whole=True))
    assert found == {
        ("mindie_gateway_ready",): 0,
        ("mindie_gateway_engine_stalled",): 1,
        ("process_start_time_seconds",): 10,
        ("process_max_fds",): 1024,
    }


def test_without_a_worker_it_is_not_ready() -> None:
    ready = page(mindie_gateway_ready=1)
    assert samples(merged([ready], whole=True)) == {("mindie_gateway_ready",): 1}
    assert samples(merged([ready], whole=False)) == {("mindie_gateway_ready",): 0}


def test_the_requests_of_a_dead_worker_have_failed() -> None:
    metrics = Metrics()
    with metrics.account("a") as account:
        account.succeeded()
    for route in ("a", "a", "b"):
        metrics.received.labels(route).inc()
        metrics.in_flight.labels(route).inc()
    metrics.worker_restarts.inc(3)
    left = inherited(figures(metrics.registry))
    found = samples(merged([left], whole=True))
    name = "mindie_gateway_requests_finished_total"
    assert {key[1:]: value for key, value in found.items() if key[0] == name} == {
        ("outcome=succeeded", "route=a"): 1,
        ("outcome=failed", "route=a"): 2,
        ("outcome=failed", "route=b"): 1,
    }
    assert found["mindie_gateway_request_duration_seconds_count", "route=a"] == 1
    assert not [key for key in found if "in_flight" in key[0] or "restarts" in key[0]]
    # It goes on from one to the next, and grows no longer on the way.
    assert samples(merged([inherited(left)], whole=True)) == found
    assert len(inherited(left)) == len(left)


def failed_once() -> Metrics:
    """Its books show one failed request, and one that has not ended."""
    metrics = Metrics()
    with metrics.account("a") as account:
        account.refused_or_failed(IncompleteGeneration("it broke"))
    metrics.received.labels("a").inc()
    return metrics


def test_a_series_of_several_workers_is_there_once_whatever_the_order_of_its_labels() -> None:
    dead = inherited(figures(failed_once().registry))
    # The worker's own failures and those that died with it are one figure, too.
    for pages, failed in (([dead], 2), ([dead, figures(failed_once().registry)], 3)):
        found = samples(merged(pages, whole=True))
        name = "mindie_gateway_requests_finished_total"
        assert found[name, "outcome=failed", "route=a"] == failed


def test_the_books_balance_however_often_a_place_dies() -> None:
    left: Figures = []
    for deaths in (1, 2, 3):
        metrics = Metrics()
        metrics.show_mindie(MindieMetrics("m", load=Load, waiting=lambda: 0.0))
        with metrics.account("a") as account:
            account.began()
            account.succeeded()
        for _ in range(2):
            metrics.received.labels("a").inc()
            assert metrics.mindie is not None
            metrics.mindie.received()
        # As a worker leaves its books.
        left = inherited([*figures(metrics.registry), *left])
        found = samples(merged([left], whole=True))
        finished = "mindie_gateway_requests_finished_total"
        assert found["mindie_gateway_requests_received_total", "route=a"] == 3 * deaths
        assert found[finished, "outcome=succeeded", "route=a"] == deaths
        assert found[finished, "outcome=failed", "route=a"] == 2 * deaths
        assert found["request_received_total", "model_name=m"] == 3 * deaths
        assert found["request_success_total", "model_name=m"] == deaths
        assert found["request_failed_total", "model_name=m"] == 2 * deaths


def test_nothing_is_lost_or_made_up_without_books() -> None:
    assert inherited(None) == lasting(None) == []
    assert lasting(page(some_gauge=1)) == []
