"""One span per request, in the client's trace, and vLLM's below it."""

from __future__ import annotations

import builtins
from typing import Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from proxy.engines.stub import StubEngine, silent
from proxy.settings import SettingsError
from proxy.tracing import Tracing
from tests.support import (
    RunningGateway,
    connection,
    exchange,
    generate_body,
    only_stream,
    post,
    request_bytes,
    serving,
)
from translators.errors import IncompleteGeneration

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
W3C = f"00-{TRACE}-{SPAN}-01"
SECRET = "xyzzy-plugh"


def traced(running: RunningGateway) -> InMemorySpanExporter:
    """Spans of this gateway, kept instead of sent."""
    exporter = InMemorySpanExporter()
    running.gateway.tracing = Tracing("http://127.0.0.1:9/", exporter)
    return exporter


def spans(running: RunningGateway, exporter: InMemorySpanExporter) -> list[Any]:
    tracing = running.gateway.tracing
    assert tracing is not None
    tracing._provider.force_flush()
    return list(exporter.get_finished_spans())


@pytest.mark.parametrize("header", [f"traceparent: {W3C}", f"b3: {TRACE}-{SPAN}-1"])
async def test_without_an_endpoint_the_clients_trace_goes_to_the_engine(header: str) -> None:
    async with serving() as running:
        await exchange(running.port, request_bytes(generate_body(), headers=(header,)))
        assert running.engine.submitted[0].trace == {"traceparent": W3C}
        await post(running.port, generate_body())
        assert running.engine.submitted[1].trace == {}


@pytest.mark.parametrize("header", [f"traceparent: {W3C}", f"b3: {TRACE}-{SPAN}-1"])
async def test_our_span_stands_between_the_clients_and_the_engines(header: str) -> None:
    async with serving() as running:
        exporter = traced(running)
        raw = request_bytes({"id": "a-1", **generate_body(SECRET)}, headers=(header,))
        await exchange(running.port, raw)
        await running.settled(succeeded=1)
        (span,) = spans(running, exporter)
        below = running.engine.submitted[0].trace["traceparent"]
    assert f"{span.context.trace_id:032x}" == TRACE
    assert f"{span.parent.span_id:016x}" == SPAN
    assert below == f"00-{TRACE}-{span.context.span_id:016x}-01"
    assert span.name == "POST /v2/models/{model}/generate_stream"
    assert span.attributes["mindie.id"] == "a-1"
    assert span.attributes["mindie.outcome"] == "succeeded"
    assert span.attributes["mindie.generated_tokens"] == 3
    assert span.status.is_ok or span.status.is_unset
    assert SECRET not in span.to_json()


async def test_a_request_without_a_trace_begins_one() -> None:
    async with serving() as running:
        exporter = traced(running)
        await post(running.port, generate_body())
        await running.settled(succeeded=1)
        (span,) = spans(running, exporter)
        assert span.parent is None
        assert f"{span.context.trace_id:032x}" in running.engine.submitted[0].trace["traceparent"]


async def test_a_failure_is_an_error_and_a_refusal_is_none() -> None:
    engine = StubEngine(silent)
    async with serving(engine) as running:
        exporter = traced(running)
        await post(running.port, b"{")
        async with connection(running.port) as client:
            client.send(request_bytes(generate_body()))
            (await only_stream(engine)).fail(IncompleteGeneration("the engine died"))
            await client.response()
        await running.settled(refused=1, failed=1)
        refused, failed = spans(running, exporter)
    assert refused.status.is_unset
    assert not failed.status.is_ok
    assert failed.status.description == "Incomplete Generation"


def test_without_opentelemetry_the_setting_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("opentelemetry"):
            raise ModuleNotFoundError(name=name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(SettingsError, match="vllm-mindie-gateway\\[otel\\]"):
        Tracing("http://127.0.0.1:9/")
