"""One line per finished request: complete, in either style, without anybody's text."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

from proxy.engines.base import EngineRequest
from proxy.engines.stub import StubEngine, silent
from proxy.logs import PRIVATE, ConsoleFormatter, JsonFormatter
from tests.support import (
    STREAM_PATH,
    connection,
    eventually,
    exchange,
    generate_body,
    get,
    only_stream,
    post,
    request_bytes,
    serving,
    token,
)
from translators.errors import IncompleteGeneration
from translators.tokens import Finish, FinishReason, Token

SECRET = "xyzzy-plugh"


@pytest.fixture(autouse=True)
def _at_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "proxy")


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """The fields of the request lines so far."""
    return [record.fields for record in caplog.records if record.name == "proxy.request_log"]


async def only_line(caplog: pytest.LogCaptureFixture) -> dict[str, Any]:
    await eventually(lambda: lines(caplog))
    (line,) = lines(caplog)
    return line


async def waited(request: EngineRequest) -> AsyncIterator[Token]:
    yield Token(1, SECRET, 0.0, 0.25, 1)
    yield Token(2, SECRET, 0.0, 0.0, 1, Finish(FinishReason.END))


async def test_a_stream_that_ends_well(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(StubEngine(waited)) as running:
        body = {"id": "a-1", **generate_body(f"{SECRET} two")}
        response = await post(running.port, body)
        line = await only_line(caplog)
        engine_id = running.engine.submitted[0].request_id
    total, first = line.pop("total_ms"), line.pop("first_token_ms")
    assert 0 < first <= total
    assert line.pop("queue_ms") == pytest.approx(250, abs=50)
    assert line == {
        "request_uuid": response.headers["requestuuid"],
        "method": "POST",
        "route": "/v2/models/{model}/generate_stream",
        "status": 200,
        "id": "a-1",
        "engine_id": engine_id,
        "model": "llama3-70b",
        "outcome": "succeeded",
        "finish_reason": "end",
        "prompt_tokens": 2,
        "generated_tokens": 2,
    }
    assert SECRET not in caplog.text


@pytest.mark.parametrize(
    ("body", "path", "expected"),
    [
        (b"{", STREAM_PATH, {"status": 422, "error_type": "Input Validation Error"}),
        (
            generate_body(temperature=-1),
            STREAM_PATH,
            {"status": 422, "outcome": "refused", "error_type": "Input Validation Error"},
        ),
        (
            generate_body(),
            STREAM_PATH.replace("llama3", "other"),
            {"status": 404, "outcome": "refused", "error_type": "NotFoundError"},
        ),
        (b"{}", "/nowhere", {"status": 404, "route": "/{rest}"}),
    ],
)
async def test_a_refusal(
    body: Any, path: str, expected: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as running:
        await post(running.port, body, path)
        line = await only_line(caplog)
    assert expected.items() <= line.items()
    assert "cancel_phase" not in line


async def test_a_failure_after_the_first_byte(caplog: pytest.LogCaptureFixture) -> None:
    engine = StubEngine(silent)
    async with serving(engine) as running, connection(running.port) as client:
        client.send(request_bytes(generate_body()))
        stream = await only_stream(engine)
        stream.push(token("a"))
        stream.fail(IncompleteGeneration("the engine died"))
        await client.response()
        line = await only_line(caplog)
    assert line["status"] == 200
    assert line["outcome"] == "failed"
    assert line["error_type"] == "Incomplete Generation"
    assert line["generated_tokens"] == 1
    assert "finish_reason" not in line


@pytest.mark.parametrize("phase", ["request", "queue", "prefill", "decode"])
async def test_a_client_that_leaves_and_how_far_it_had_come(
    phase: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = StubEngine(silent)
    async with serving(engine) as running:
        if phase == "queue":
            running.gateway.admission.running_limit = 0
        async with connection(running.port) as client:
            raw = request_bytes(generate_body())
            client.send(raw[:-5] if phase == "request" else raw)
            if phase == "request":
                await eventually(lambda: running.gateway.bodies.in_use)
            elif phase == "queue":
                await eventually(lambda: running.gateway.admission.waiting)
            else:
                await client.head()
                if phase == "decode":
                    (await only_stream(engine)).push(token("a"))
                    assert await client.chunk()
        line = await only_line(caplog)
        assert line["outcome"] == "cancelled"
        assert line["cancel_phase"] == phase
        assert "status" not in line
        assert running.metric("mindie_gateway_requests_cancelled_total", phase=phase) == 1
        assert running.metric("mindie_gateway_requests_cancelled_total") == 1


async def test_what_machines_ask_all_day_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with serving() as running:
        for path in ("/v2/health/live", "/v2/health/ready", "/metrics", "/health"):
            assert (await get(running.port, path)).status == 200
        await get(running.port, "/v2")
        line = await only_line(caplog)
    assert line["route"] == "/v2"


async def test_the_keys_name_is_in_the_line_and_the_key_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    keys = f"alice sha256:{hashlib.sha256(SECRET.encode()).hexdigest()}"
    async with serving(api_keys=keys) as running:
        headers = (f"X-Api-Key: {SECRET}",)
        await exchange(running.port, request_bytes(generate_body(), headers=headers))
        line = await only_line(caplog)
    assert line["key"] == "alice"
    assert SECRET not in str(caplog.records)


# Ids in and out.


async def test_a_clients_ids_come_back_and_are_in_the_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    uuid, other = "0123456789abcdef" * 2, "req-7/a.b:c"
    headers = (f"RequestUUID: {uuid}", f"X-Request-Id: {other}")
    async with serving() as running:
        response = await exchange(running.port, request_bytes(generate_body(), headers=headers))
        line = await only_line(caplog)
    assert (line["request_uuid"], line["x_request_id"]) == (uuid, other)
    assert response.headers["requestuuid"] == uuid
    assert response.headers["x-request-id"] == other


@pytest.mark.parametrize(
    "forged",
    ["", "a" * 129, "a b", 'a"b', "a\x1b[31m", "a=1 level=error", "ä", "<script>", "${jndi:x}"],
)
async def test_ids_of_another_form_are_not_taken_over(
    forged: str, caplog: pytest.LogCaptureFixture
) -> None:
    headers = (f"RequestUUID: {forged}", f"X-Request-Id: {forged}")
    async with serving() as running:
        raw = request_bytes(generate_body(), headers=headers)
        response = await exchange(running.port, raw)
        if response.status == 400:
            # Not even HTTP: it became no request.
            return
        line = await only_line(caplog)
    assert len(response.headers["requestuuid"]) == 32
    assert "x-request-id" not in response.headers
    assert "x_request_id" not in line
    assert forged not in line.values()


# The two styles.


def record(message: str, *args: object, **extra: Any) -> logging.LogRecord:
    return logging.getLogger("proxy.test").makeRecord(
        "proxy.test",
        logging.INFO,
        __file__,
        1,
        message,
        args,
        extra.pop("exc_info", None),
        extra=extra,
    )


HOSTILE = "a\r\n2026-01-01T00:00:00.000Z ERROR proxy: forged \x1b[31m\x00\x85\u2028 end"


def test_console_is_one_line_whatever_is_in_it() -> None:
    line = ConsoleFormatter().format(record("got %s", HOSTILE, fields={"id": HOSTILE, "n": 3}))
    assert len(line.splitlines()) == 1
    assert line.isprintable()
    assert line.endswith(" n=3")
    assert "\\x0d\\x0a2026" in line


def test_json_is_one_object_whatever_is_in_it() -> None:
    line = JsonFormatter().format(record("got %s", HOSTILE, fields={"id": HOSTILE, "n": 3}))
    assert "\n" not in line
    document = json.loads(line)
    assert document["message"] == f"got {HOSTILE}"
    assert (document["id"], document["n"], document["level"]) == (HOSTILE, 3, "info")


@pytest.mark.parametrize("style", [ConsoleFormatter(), JsonFormatter()])
def test_a_private_traceback_has_no_message(style: logging.Formatter) -> None:
    with pytest.raises(ValueError, match=SECRET) as raised:
        int(SECRET + "\nERROR forged")
    info = (raised.type, raised.value, raised.tb)
    private = style.format(record("failed", exc_info=info, **PRIVATE))
    assert SECRET not in private
    assert "ValueError" in private
    assert "test_request_log.py" in private
    public = style.format(record("failed", exc_info=info))
    assert SECRET in public
    assert not any(line.startswith("ERROR forged") for line in public.splitlines())


@pytest.mark.logs_errors
async def test_a_bug_in_a_handler_logs_no_text_of_the_request(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(request: EngineRequest) -> None:
        raise RuntimeError(f"cannot handle {request.text}")

    engine = StubEngine()
    monkeypatch.setattr(engine, "submit", broken)
    async with serving(engine) as running:
        response = await post(running.port, generate_body(SECRET))
        assert response.status == 500
        assert SECRET.encode() not in response.body
    errors = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert errors
    for each in errors:
        for style in (ConsoleFormatter(), JsonFormatter()):
            assert SECRET not in style.format(each)


@pytest.mark.parametrize(("tokens", "observed"), [(1, 0), (4, 1)])
async def test_the_time_between_tokens_is_observed_once_where_there_is_one(
    tokens: int, observed: int
) -> None:
    async with serving() as running:
        await post(running.port, generate_body(tokens=tokens))
        await running.settled(succeeded=1)
        name = "mindie_gateway_time_per_output_token_seconds"
        assert running.metric(f"{name}_count") == observed
        assert 0 <= running.metric(f"{name}_sum") < 1


async def test_what_the_engine_runs_is_a_metric() -> None:
    engine = StubEngine(silent)
    async with serving(engine) as running, connection(running.port) as client:
        client.send(request_bytes(generate_body()))
        await only_stream(engine)
        assert running.metric("mindie_gateway_requests_running") == 1
    assert running.metric("mindie_gateway_requests_running") == 0
