"""A key's limits: the token bucket and the count, by a clock that the test holds."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from proxy.crew import Worker
from proxy.limits import Allowance, Limits
from translators.errors import TooManyRequests


def send(allowance: Allowance, now: float) -> None:
    with allowance.taken(now):
        pass


def test_a_burst_passes_and_then_the_rate_holds() -> None:
    allowance = Allowance(Limits(rate=60, burst=3), 0.0)
    for _ in range(3):
        send(allowance, 0.0)
    with pytest.raises(TooManyRequests) as refused:
        send(allowance, 0.0)
    assert refused.value.retry_after == 1
    with pytest.raises(TooManyRequests):
        send(allowance, 0.9)
    send(allowance, 1.0)
    with pytest.raises(TooManyRequests):
        send(allowance, 1.0)


def test_calm_does_not_save_up_more_than_the_burst() -> None:
    allowance = Allowance(Limits(rate=60, burst=2), 0.0)
    for _ in range(2):
        send(allowance, 1000.0)
    with pytest.raises(TooManyRequests):
        send(allowance, 1000.0)


def test_retry_after_is_the_time_to_the_next_token() -> None:
    allowance = Allowance(Limits(rate=2), 0.0)
    send(allowance, 0.0)
    with pytest.raises(TooManyRequests) as refused:
        send(allowance, 5.0)
    assert refused.value.retry_after == 25


def test_without_a_burst_a_second_of_the_rate_may_come_at_once() -> None:
    allowance = Allowance(Limits(rate=300), 0.0)
    for _ in range(5):
        send(allowance, 0.0)
    with pytest.raises(TooManyRequests):
        send(allowance, 0.0)


def test_only_so_many_at_once_and_an_ended_one_makes_room() -> None:
    allowance = Allowance(Limits(concurrency=2), 0.0)
    with ExitStack() as first:
        first.enter_context(allowance.taken(0.0))
        with allowance.taken(0.0), pytest.raises(TooManyRequests) as refused:
            send(allowance, 0.0)
        assert refused.value.retry_after == 1
        send(allowance, 0.0)


def test_one_that_is_refused_for_its_number_costs_no_token() -> None:
    allowance = Allowance(Limits(rate=60, burst=2, concurrency=1), 0.0)
    with allowance.taken(0.0), pytest.raises(TooManyRequests):
        send(allowance, 0.0)
    send(allowance, 0.0)


def test_no_limits_refuse_nothing() -> None:
    allowance = Allowance(Limits(), 0.0)
    with ExitStack() as stack:
        for _ in range(1000):
            stack.enter_context(allowance.taken(0.0))


def test_a_worker_has_its_part_of_a_keys_limits() -> None:
    limits = Limits(rate=120, burst=5, concurrency=3)
    first, second = (Allowance(limits, 0.0, Worker(index, 2)) for index in range(2))
    for allowance, burst in ((first, 3), (second, 2)):
        for _ in range(burst):
            send(allowance, 0.0)
        with pytest.raises(TooManyRequests, match="120 requests a minute") as refused:
            send(allowance, 0.0)
        assert refused.value.retry_after == 1
        send(allowance, 1.0)
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(Allowance(limits, 0.0, Worker(0, 2)).taken(0.0))
        stack.enter_context(second.taken(60.0))
        with pytest.raises(TooManyRequests, match="3 requests at once"):
            stack.enter_context(second.taken(60.0))
