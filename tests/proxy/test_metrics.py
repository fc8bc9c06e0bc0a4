"""The books: what was received ends in exactly one way, whatever happened."""

from __future__ import annotations

import asyncio
import random

import pytest

from proxy.departure import ClientGone
from proxy.engines.stub import StubEngine, silent
from proxy.metrics import Metrics, Outcome
from tests.support import (
    Connection,
    RunningGateway,
    connection,
    eventually,
    generate_body,
    get,
    only_stream,
    post,
    request_bytes,
    serving,
    token,
)
from translators.errors import (
    BadRequest,
    BodyTooLarge,
    GatewayError,
    GenerationError,
    IncompleteGeneration,
    InvalidInput,
    NotFound,
    ServiceUnavailable,
    UnsupportedEncoding,
)

pytestmark = pytest.mark.usefixtures("workers")


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (BadRequest("x"), Outcome.REFUSED),
        (NotFound("x"), Outcome.REFUSED),
        (BodyTooLarge("x"), Outcome.REFUSED),
        (UnsupportedEncoding("x"), Outcome.REFUSED),
        (InvalidInput("x"), Outcome.REFUSED),
        (GenerationError("x"), Outcome.REFUSED),
        (IncompleteGeneration("x"), Outcome.FAILED),
        (ServiceUnavailable("x"), Outcome.REFUSED),
        (RuntimeError("x"), Outcome.FAILED),
        (ConnectionResetError("not the client's"), Outcome.FAILED),
        (ClientGone("x"), Outcome.CANCELLED),
        (asyncio.CancelledError(), Outcome.CANCELLED),
    ],
)
def test_how_an_exception_counts(error: BaseException, outcome: Outcome) -> None:
    metrics = Metrics()
    with pytest.raises(type(error)), metrics.account("route"):
        raise error
    value = metrics.registry.get_sample_value
    labels = {"route": "route", "outcome": outcome.value}
    assert value("mindie_gateway_requests_finished_total", labels) == 1
    assert value("mindie_gateway_requests_in_flight", {"route": "route"}) == 0
    assert value("mindie_gateway_request_duration_seconds_count", {"route": "route"}) == 1
    counted = isinstance(error, GatewayError)
    assert (value("mindie_gateway_errors_total", _error_labels(error)) == 1) is counted


def _error_labels(error: BaseException) -> dict[str, str]:
    return {
        "route": "route",
        "status": str(getattr(error, "status", "")),
        "error_type": getattr(error, "error_type", ""),
    }


def test_a_client_that_leaves_after_its_last_frame_was_served() -> None:
    metrics = Metrics()
    with pytest.raises(ClientGone), metrics.account("route") as account:
        account.succeeded()
        raise ClientGone
    assert account.outcome is Outcome.SUCCEEDED


def test_a_stream_that_breaks_stays_broken_when_its_client_leaves_too() -> None:
    metrics = Metrics()
    with pytest.raises(ClientGone), metrics.account("route") as account:
        account.broken(IncompleteGeneration("x"))
        raise ClientGone
    assert account.outcome is Outcome.FAILED


async def test_the_page_is_prometheus_text_of_ours_and_the_process() -> None:
    async with serving() as running:
        await post(running.port, generate_body("one two three", 4))
        page = await get(running.port, "/metrics")
    assert page.headers["content-type"] == "text/plain; charset=utf-8"
    text = page.body.decode()
    route = 'route="generate_stream"'
    assert f"mindie_gateway_requests_received_total{{{route}}} 1.0" in text
    assert "mindie_gateway_prompt_tokens_total 3.0" in text
    assert "mindie_gateway_generated_tokens_total 4.0" in text
    assert f"mindie_gateway_time_to_first_token_seconds_count{{{route}}} 1.0" in text
    assert "process_cpu_seconds_total" in text


async def test_labels_are_bounded() -> None:
    """What clients invent never becomes a label."""
    async with serving() as running:
        for word in ("invented", "zzz"):
            await post(running.port, generate_body(), f"/v2/models/{word}/generate_stream")
            await post(running.port, {"id": word, **generate_body()}, f"/{word}")
        text = (await get(running.port, "/metrics")).body
    assert b"invented" not in text
    assert b"zzz" not in text


@pytest.mark.alone
async def test_the_books_balance_after_everything_at_once() -> None:
    """Successes, failures, cancels and refusals in random order, in parallel."""
    engine = StubEngine()
    kinds = ["ok", "bad json", "no model", "leaves", "breaks", "stops"] * 8
    random.shuffle(kinds)
    async with serving(engine) as running:
        await asyncio.gather(*(_one(running, kind, n) for n, kind in enumerate(kinds)))
        await running.settled(succeeded=16, failed=8, cancelled=8, refused=16)


async def _one(running: RunningGateway, kind: str, number: int) -> None:
    async with connection(running.port) as client:
        match kind:
            case "ok":
                assert (await client.ask(request_bytes(generate_body()))).complete
            case "bad json":
                assert (await client.ask(request_bytes(b"{"))).status == 422
            case "no model":
                path = "/v2/models/none/generate_stream"
                assert (await client.ask(request_bytes(b"{", path))).status == 404
            case _:
                await _interrupted(running, client, kind, f"{kind}-{number}".replace(" ", ""))


async def _interrupted(running: RunningGateway, client: Connection, kind: str, name: str) -> None:
    # The page's longest request: it would go on for 2,000 tokens.
    client.send(request_bytes({"id": name, **generate_body(tokens=2000)}))
    await client.head()
    live = running.gateway.live
    if kind == "stops":
        assert live.stop(name) == 1
        assert (await client.response_body()).complete
    elif kind == "breaks":
        for stream in [each for each, its in live._ids.items() if its == name]:
            stream.fail(IncompleteGeneration("broken by the test"))
        assert not (await client.response_body()).complete


async def test_time_to_first_token_is_taken_once() -> None:
    engine = StubEngine(silent)
    async with serving(engine) as running, connection(running.port) as client:
        client.send(request_bytes(generate_body()))
        stream = await only_stream(engine)
        name = "mindie_gateway_time_to_first_token_seconds_count"
        for number in range(1, 4):
            stream.push(token("a", number))
            await eventually(lambda: not stream._pending)
        assert running.metric(name) == 1
