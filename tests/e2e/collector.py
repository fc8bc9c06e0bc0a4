"""An OpenTelemetry collector: takes spans over OTLP/HTTP and keeps them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

PATH = "/v1/traces"


class Collector:
    """`url` is where spans go; `trace` gives those of one trace, by their names."""

    def __init__(self) -> None:
        self.url = ""
        self._spans: list[Span] = []

    async def take(self, request: web.Request) -> web.Response:
        message = ExportTraceServiceRequest.FromString(await request.read())
        for resource in message.resource_spans:
            for scope in resource.scope_spans:
                self._spans += scope.spans
        return web.Response(content_type="application/x-protobuf")

    def trace(self, trace_id: str) -> dict[str, Span]:
        return {span.name: span for span in self._spans if span.trace_id.hex() == trace_id}


@asynccontextmanager
async def collecting() -> AsyncIterator[Collector]:
    collector, app = Collector(), web.Application()
    app.router.add_post(PATH, collector.take)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        collector.url = f"http://127.0.0.1:{runner.addresses[0][1]}{PATH}"
        yield collector
    finally:
        await runner.cleanup()
