"""GET /stopService: only where it was switched on, only on the management listener."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.settings import Settings
from tests.support import exchange, get, get_bytes, request_bytes, serving


async def test_it_stops_the_process_once_however_often_it_is_called() -> None:
    stops: list[None] = []
    async with serving(management_port=0, stop_service=True) as running:
        running.gateway.request_stop = lambda: stops.append(None)
        service, management = running.ports
        assert (await get(service, "/stopService")).status == 404
        assert not stops
        head = await exchange(management, get_bytes("/stopService", method="HEAD"))
        assert head.status == 200
        assert not stops
        response = await get(management, "/stopService")
        assert (response.status, response.body) == (200, b"")
        assert len(stops) == 1
        raw = request_bytes({}, "/stopService")
        assert (await exchange(management, raw)).status == 404


async def test_it_is_off_by_default() -> None:
    async with serving(management_port=0) as running:
        running.gateway.request_stop = lambda: pytest.fail("stopped")
        assert (await get(running.ports[1], "/stopService")).status == 404


@pytest.mark.parametrize("ports", [{}, {"port": 9, "management_port": 9}])
def test_it_needs_a_listener_of_its_own(ports: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="stop_service needs a management_port of its own"):
        Settings(stop_service=True, **ports)
