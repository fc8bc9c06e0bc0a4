"""Deprecation in headers and in a metric."""

from __future__ import annotations

import hashlib
from datetime import UTC, date, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from proxy.legacy import FAMILIES, family
from proxy.routes import ROUTES
from proxy.settings import Settings
from tests.proxy.engines.remote.sidecar import sidecar
from tests.support import (
    STREAM_PATH,
    RawResponse,
    exchange,
    generate_body,
    get,
    post,
    request_bytes,
    serving,
)

pytestmark = pytest.mark.usefixtures("workers")

LEGACY = {
    *("/v2/models/{model}/generate_stream", "/v2/models/{model}/generate"),
    *("/v2/models/{model}/infer", "/v2/models/{model}/stopInfer"),
    *("/v2/models/{model}", "/v2/models/{model}/config", "/v2/models/{model}/getSlotCount"),
    *("/v2", "/info", "/generate_stream", "/generate", "/"),
}
NAMES = ("deprecation", "sunset", "link")


def told(response: RawResponse) -> dict[str, str]:
    return {name: response.headers[name] for name in NAMES if name in response.headers}


async def streamed(**settings: Any) -> RawResponse:
    async with serving(**settings) as running:
        return await post(running.port, generate_body())


def test_what_is_legacy_and_what_stays() -> None:
    assert {route.path for route in ROUTES if route.legacy} == LEGACY


async def test_legacy_answers_carry_the_day() -> None:
    response = await streamed(deprecation="2027-03-01", sunset="2028-03-01")
    assert told(response) == {
        "deprecation": f"@{int(datetime(2027, 3, 1, tzinfo=UTC).timestamp())}",
        "sunset": "Wed, 01 Mar 2028 00:00:00 GMT",
    }
    assert parsedate_to_datetime(response.headers["sunset"]).date() == date(2028, 3, 1)


async def test_by_default_there_is_a_day_and_no_end() -> None:
    assert list(told(await streamed())) == ["deprecation"]


async def test_it_can_be_off() -> None:
    assert told(await streamed(deprecation="off")) == {}


async def test_failures_of_legacy_routes_carry_it_too() -> None:
    async with serving() as running:
        refused = await post(running.port, b"no JSON")
        assert refused.status == 422
        assert "deprecation" in told(refused)


@pytest.mark.parametrize("path", ["/v2/health/ready", "/v1/models", "/metrics", "/nowhere"])
async def test_other_routes_do_not(path: str) -> None:
    async with serving() as running:
        assert told(await get(running.port, path)) == {}


async def test_the_successor_is_named_where_there_is_one() -> None:
    async with sidecar() as opened:
        response = await post(opened.port, generate_body())
        assert response.headers["link"] == '</v1/completions>; rel="successor-version"'


async def test_a_page_for_those_who_have_to_move() -> None:
    response = await streamed(deprecation_link="https://example.com/moving?a=b")
    assert response.headers["link"] == (
        '<https://example.com/moving?a=b>; rel="deprecation"; type="text/html"'
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"deprecation": "soon"},
        {"deprecation": "off", "sunset": "2027-01-01"},
        {"deprecation": "2027-01-02", "sunset": "2027-01-01"},
        {"deprecation_link": "https://x/>; rel=evil"},
        {"deprecation_link": "https://x/\r\nX: y"},
        {"deprecation_link": "ftp://x"},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        Settings(**wrong)  # type: ignore[arg-type]


async def used(running: Any, **labels: str) -> float:
    return float(running.metric("mindie_gateway_legacy_requests_total", **labels))


async def test_use_is_counted_by_route_and_kind_of_client() -> None:
    async with serving() as running:
        for agent in ("curl/8.5.0", "curl/7.1", "python-requests/2.32.3", "MyTool/1.0"):
            headers = (f"User-Agent: {agent}",)
            await post(running.port, generate_body(), headers=headers)
        await post(running.port, b"no JSON")
        await get(running.port, "/v2/health/live")
        route = "/v2/models/{model}/generate_stream"
        clients = ("curl", "python-requests", "other", "none")
        counts = [await used(running, route=route, client=client) for client in clients]
        assert counts == [2, 1, 1, 1]
        assert await used(running) == 5


async def test_a_client_with_a_key_is_counted_by_its_name() -> None:
    digest = hashlib.sha256(b"k1").hexdigest()
    async with serving(api_keys=f"alice sha256:{digest}") as running:
        headers = ("Authorization: Bearer k1", "User-Agent: curl/8.5.0")
        raw = request_bytes(generate_body(), STREAM_PATH, headers=headers)
        assert (await exchange(running.port, raw)).status == 200
        assert await used(running, client="alice") == 1
        await post(running.port, generate_body(), headers=("User-Agent: curl/8.5.0",))
        assert await used(running, client="curl") == 1, "refused, and still to be moved"


@pytest.mark.parametrize(
    ("agent", "kind"),
    [
        (None, "none"),
        ("", "none"),
        ("Python/3.11 aiohttp/3.14.0", "aiohttp"),
        ("unknown/None; hf_hub/0.35.0; python/3.11", "huggingface_hub"),
        ("Go-http-client/2.0", "go"),
        ("Java/17.0.1", "java"),
        ("Apache-HttpClient/4.5.14 (Java/17)", "apache-httpclient"),
        ("Mozilla/5.0 (X11; Linux x86_64) Gecko/20100101", "browser"),
        ("x" * 600 + " curl/8", "other"),
        ("curlish/1", "other"),
    ],
)
def test_families(agent: str | None, kind: str) -> None:
    assert family(agent) == kind


@given(st.text())
def test_kinds_are_bounded_whatever_a_client_calls_itself(agent: str) -> None:
    assert family(agent) in {*FAMILIES.values(), "other", "none"}
