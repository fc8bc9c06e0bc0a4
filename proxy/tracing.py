"""OpenTelemetry: one span per request, between the client's trace and vLLM's. The extra `otel`.

Without `trace_endpoint` no span is made, and the client's trace is passed on to
vLLM as it came.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from proxy import SERVER_NAME
from proxy.settings import SettingsError

NO_OTEL: Final = (
    "trace_endpoint needs OpenTelemetry, which is not installed: "
    'pip install "vllm-mindie-gateway[otel]"'
)


class Tracing:
    """Makes spans and sends them, in a thread of the SDK's own, to an OTLP/HTTP endpoint.

    `exporter` takes the place of that endpoint in tests. Raises SettingsError
    where OpenTelemetry is not installed.
    """

    def __init__(self, endpoint: str, exporter: Any = None) -> None:
        try:
            from opentelemetry import trace
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.trace.propagation import tracecontext
        except ModuleNotFoundError:
            raise SettingsError(NO_OTEL) from None
        self._trace = trace
        self._format = tracecontext.TraceContextTextMapPropagator()
        self._provider = TracerProvider(resource=Resource.create({"service.name": SERVER_NAME}))
        sender = OTLPSpanExporter(endpoint=endpoint) if exporter is None else exporter
        self._provider.add_span_processor(BatchSpanProcessor(sender))
        self._tracer = self._provider.get_tracer(SERVER_NAME)

    def begin(self, context: Mapping[str, str]) -> tuple[Any, dict[str, str]]:
        """A span in the client's trace, or in a new one, and the context below it."""
        span = self._tracer.start_span(
            "request", context=self._format.extract(context), kind=self._trace.SpanKind.SERVER
        )
        below: dict[str, str] = {}
        self._format.inject(below, self._trace.set_span_in_context(span))
        return span, below

    def end(self, span: Any, fields: Mapping[str, Any]) -> None:
        """End the span with what the log's line says; a failure of ours is an error."""
        route = fields.get("route")
        if route is not None:
            span.update_name(f"{fields['method']} {route}")
        span.set_attributes({f"mindie.{name}": value for name, value in fields.items()})
        if fields.get("outcome") == "failed" or fields.get("status") == 500:
            span.set_status(self._trace.StatusCode.ERROR, fields.get("error_type"))
        span.end()

    def close(self) -> None:
        """Send what is left; takes as long as the SDK gives its exporter."""
        self._provider.shutdown()
