"""Readiness: the state of the gateway, and whether its engine can be reached."""

from __future__ import annotations

from proxy.engines.stub import StubEngine
from tests.support import exchange, post, request_bytes, serving

READY = request_bytes(b"", "/v2/health/ready", method="GET")
LIVE = request_bytes(b"", "/v2/health/live", method="GET")
BODY = {"text_input": "one two", "parameters": {"max_new_tokens": 2}}


async def test_an_engine_that_is_away_is_not_ready_and_may_come_back() -> None:
    engine = StubEngine()
    async with serving(engine) as running:
        assert (await exchange(running.port, READY)).status == 200
        assert running.metric("mindie_gateway_ready") == 1

        engine.available = False
        ready = await exchange(running.port, READY)
        refused = await post(running.port, BODY)
        assert (ready.status, refused.status) == (503, 503)
        assert ready.json == {"message": "the engine cannot be reached"}
        assert refused.json["error_type"] == "Service Unavailable"
        assert refused.headers["retry-after"] == "1"
        assert (await exchange(running.port, LIVE)).status == 200
        assert running.metric("mindie_gateway_ready") == 0

        engine.available = True
        assert (await exchange(running.port, READY)).status == 200
        assert (await post(running.port, BODY)).status == 200
