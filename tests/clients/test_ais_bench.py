"""AISBench, the benchmark of the Ascend ecosystem: its own model classes, unmodified."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from ais_bench.benchmark.models import TGICustomAPI, TritonCustomAPI
from ais_bench.benchmark.models.output import RequestOutput

from tests.clients.conftest import Server

PROMPT = "My name is Olivier and I"


def _ask(model: Any, tokens: int) -> RequestOutput:
    output = RequestOutput(perf_mode=True)
    asyncio.run(model.generate(PROMPT, tokens, output))
    return output


def _model(kind: Any, server: Server, *, stream: bool) -> Any:
    return kind(
        host_ip="127.0.0.1",
        host_port=server.port,
        stream=stream,
        generation_kwargs={"temperature": 0.01, "ignore_eos": False, "seed": 7},
    )


@pytest.mark.parametrize("kind", [TritonCustomAPI, TGICustomAPI])
def test_stream_and_text_say_the_same(gateway: Server, kind: Any) -> None:
    streamed = _ask(_model(kind, gateway, stream=True), 12)
    whole = _ask(_model(kind, gateway, stream=False), 12)
    assert streamed.success, streamed.error_info
    assert whole.success, whole.error_info
    assert streamed.content == whole.content
    assert streamed.content.strip()


def test_the_model_name_is_found_by_asking(gateway: Server) -> None:
    assert _model(TritonCustomAPI, gateway, stream=True).model_name == gateway.model


def test_one_time_point_per_token(gateway: Server) -> None:
    output = _ask(_model(TritonCustomAPI, gateway, stream=True), 12)
    # The request's own, then one for each frame.
    assert len(output.time_points) == 13
