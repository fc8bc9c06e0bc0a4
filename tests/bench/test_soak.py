"""The soak sees what is wrong."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.bench.processes import server
from tests.bench.soak import Report, soak

GOOD = {
    "received": 9.0,
    "succeeded": 6.0,
    "failed": 0.0,
    "cancelled": 3.0,
    "refused": 0.0,
    "in flight": 0.0,
    "running": 0.0,
    "waiting": 0.0,
}
MEMORY = [50, *[100] * 7]


def report(
    visits: dict[str, int] | None = None, memory: list[int] = MEMORY, **counters: float
) -> Report:
    seen = Counter(visits or {"whole": 6, "left": 3})
    memory = [each * 2**20 for each in memory]
    return Report(3, 8.0, seen, 99, memory, GOOD | counters)


def test_a_good_run_has_no_fault() -> None:
    assert report().faults() == []


@pytest.mark.parametrize(
    "bad",
    [
        report({"whole": 5, "left": 3, "cut off": 1}),
        report({"whole": 7, "left": 2}),
        report({"whole": 6, "left": 4}),
        report(memory=[100] * 6 + [120] * 2),
        report(succeeded=7.0),
        report(failed=1.0, cancelled=2.0),
        report(refused=1.0, cancelled=2.0),
        report(**{"in flight": 1.0}),
        report(running=1.0),
        report(waiting=1.0),
    ],
)
def test_each_fault_is_found(bad: Report) -> None:
    assert len(bad.faults()) == 1


async def test_a_short_soak_of_a_gateway_is_clean() -> None:
    with server("/v2/health/ready", "tests.bench.serve_source", "paced", "{port}") as running:
        seen = await soak(running, streams=20, seconds=2.0)
    # In two seconds the memory is still warming up.
    assert [fault for fault in seen.faults() if "memory" not in fault] == []
    assert seen.visits["whole"] > 10
    assert seen.visits["left"] > 5
