"""Addresses: one for everything, or more for some of the routes, all bound before the engine."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from proxy.engines.base import Engine
from proxy.engines.stub import StubEngine
from proxy.lifecycle import EXIT_OK, Process
from proxy.listeners import (
    Listener,
    addresses,
    bind,
    bind_all,
    bind_for_workers,
    close_all,
)
from proxy.openapi import NOT_OURS
from proxy.routes import ROUTES
from proxy.settings import Settings
from tests.support import MODEL, WITHIN, eventually, exchange, get, request_bytes, serving

SERVICE, MANAGEMENT, METRICS = Listener.SERVICE, Listener.MANAGEMENT, Listener.METRICS
HERE = "127.0.0.1"


def served(**settings: Any) -> list[tuple[str, int, set[Listener]]]:
    return [(host, port, set(serves)) for host, port, serves in addresses(Settings(**settings))]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [(HERE, 1025, {SERVICE, MANAGEMENT, METRICS})]),
        (
            {"management_port": 1026, "metrics_port": 1027},
            [(HERE, 1025, {SERVICE}), (HERE, 1026, {MANAGEMENT}), (HERE, 1027, {METRICS})],
        ),
        (
            {"management_port": 1026},
            [(HERE, 1025, {SERVICE, METRICS}), (HERE, 1026, {MANAGEMENT})],
        ),
        (
            {"metrics_port": 1027, "metrics_host": "127.0.0.2"},
            [(HERE, 1025, {SERVICE, MANAGEMENT}), ("127.0.0.2", 1027, {METRICS})],
        ),
        (
            {"management_port": 1026, "metrics_port": 1026},
            [(HERE, 1025, {SERVICE}), (HERE, 1026, {MANAGEMENT, METRICS})],
        ),
        ({"management_port": 1025}, [(HERE, 1025, {SERVICE, MANAGEMENT, METRICS})]),
        (
            {"management_port": 1025, "management_host": "127.0.0.2"},
            [(HERE, 1025, {SERVICE, METRICS}), ("127.0.0.2", 1025, {MANAGEMENT})],
        ),
        ({"port": 0}, [(HERE, 0, {SERVICE, MANAGEMENT, METRICS})]),
        (
            {"port": 0, "management_port": 0, "metrics_port": 0},
            [(HERE, 0, {SERVICE}), (HERE, 0, {MANAGEMENT}), (HERE, 0, {METRICS})],
        ),
    ],
)
def test_every_group_of_routes_has_exactly_one_address(
    settings: dict[str, Any], expected: list[tuple[str, int, set[Listener]]]
) -> None:
    assert served(**settings) == expected


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"management_host": "127.0.0.2"}, "management_host has no effect without management_port"),
        ({"metrics_host": "127.0.0.2"}, "metrics_host has no effect without metrics_port"),
        ({"management_host": "0.0.0.0", "management_port": 1}, "every address, without TLS"),
        ({"metrics_host": "::", "metrics_port": 1}, "every address, without TLS"),
    ],
)
def test_addresses_that_are_not_as_safe_as_they_look_are_refused(
    settings: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        Settings(**settings)


def test_an_address_that_is_taken_frees_the_ones_before_it() -> None:
    with bind(HERE, 0) as taken, bind(HERE, 0) as free:
        clash, port = taken.getsockname()[1], free.getsockname()[1]
        free.close()
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{clash}: .*in use"):
            bind_all(Settings(port=port, management_port=clash))
        with contextlib.closing(bind(HERE, port)):
            pass


SPLIT: dict[str, Any] = {"management_port": 0, "metrics_port": 0}


OURS = [route for route in ROUTES if route.handler not in NOT_OURS]


@pytest.mark.parametrize("route", OURS, ids=lambda route: f"{route.method} {route.path}")
async def test_a_route_exists_at_its_own_address_only(route: Any) -> None:
    path = route.path.replace("{model}", MODEL).replace("{seconds:[0-9]+}", "5")
    # Some are used by GET, and HEAD only asks for them.
    method = "HEAD" if route.method == "GET" else route.method
    raw = request_bytes(b"{}", path, method=method)
    async with serving(stop_service=True, **SPLIT) as running:
        statuses = [(await exchange(port, raw)).status for port in running.ports]
        assert len(running.ports) == 3
    expected = [route.listener is each for each in (SERVICE, MANAGEMENT, METRICS)]
    assert [status != 404 for status in statuses] == expected


async def test_what_does_not_exist_at_an_address_looks_like_nothing_at_all() -> None:
    async with serving(**SPLIT) as running:
        service, _, metrics = running.ports
        hidden = await get(service, "/metrics")
        nowhere = await get(metrics, "/nowhere")
        assert (hidden.status, hidden.json) == (nowhere.status, nowhere.json)
        assert (await get(service, "/metrics", method="HEAD")).status == 404


async def test_all_addresses_answer_while_the_engine_starts_and_until_the_end() -> None:
    engine = StubEngine()
    engine.start_gate.clear()

    async def factory() -> Engine:
        return engine

    settings = Settings(port=0, **SPLIT)
    bound = bind_all(settings)
    service, management, metrics = (each.port for each in bound)
    process = Process(settings, factory)
    serves = asyncio.create_task(process.serve(*bound))
    assert (await get(management, "/v2/health/live")).status == 200
    assert (await get(management, "/v2/health/ready")).json == {"message": "the engine is starting"}
    assert b"mindie_gateway_ready 0.0" in (await get(metrics, "/metrics")).body
    assert (await get(service, f"/v2/models/{MODEL}")).status == 503
    engine.start_gate.set()
    await eventually(lambda: process.gateway.obstacle is None)
    assert (await get(service, f"/v2/models/{MODEL}")).status == 200
    process.stop()
    async with asyncio.timeout(WITHIN):
        assert await serves == EXIT_OK
    for port in (service, management, metrics):
        with pytest.raises(ConnectionRefusedError):
            await get(port, "/")


def test_sockets_are_closed_together() -> None:
    bound = bind_all(Settings(port=0, **SPLIT))
    assert len({each.port for each in bound}) == 3
    close_all(bound)
    assert [each.socket.fileno() for each in bound] == [-1, -1, -1]


def test_each_worker_has_a_socket_of_its_own_at_every_address() -> None:
    settings = Settings(upstream=("http://h",), port=0, metrics_port=0, workers=3)
    rows = bind_for_workers(settings)
    try:
        assert len(rows) == 3
        for row in rows:
            assert [each.serves for each in row] == [{SERVICE, MANAGEMENT}, {METRICS}]
            assert [each.port for each in row] == [each.port for each in rows[0]]
        assert len({each.socket.fileno() for row in rows for each in row}) == 6
        # They are shared among themselves only.
        late = Settings(upstream=("http://h",), port=rows[0][0].port, workers=3)
        with pytest.raises(OSError, match=f"cannot listen on {HERE}:{late.port}"):
            bind_for_workers(late)
    finally:
        for row in rows:
            close_all(row)


def test_an_address_that_is_taken_closes_the_others_of_all_workers() -> None:
    taken = bind(HERE, 0)
    port = taken.getsockname()[1]
    free = bind(HERE, 0)
    main = free.getsockname()[1]
    free.close()
    settings = Settings(upstream=("http://h",), port=main, metrics_port=port, workers=2)
    with taken, pytest.raises(OSError, match=f"cannot listen on {HERE}:{port}"):
        bind_for_workers(settings)
    bind(HERE, main).close()
