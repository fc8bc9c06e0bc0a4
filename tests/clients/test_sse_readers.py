"""Readers of server-sent events: httpx-sse and sseclient-py."""

from __future__ import annotations

import json

import httpx
import httpx_sse
import requests
import sseclient

from tests.clients.conftest import Server
from tests.clients.page import check_frames
from tests.page import PAGE_DOCUMENT


def test_httpx_sse(gateway: Server) -> None:
    url = f"{gateway.url}/v2/models/{gateway.model}/generate_stream"
    with (
        httpx.Client(timeout=60) as client,
        httpx_sse.connect_sse(client, "POST", url, json=PAGE_DOCUMENT) as source,
    ):
        events = list(source.iter_sse())
    assert {event.event for event in events} == {"message"}
    check_frames([event.json() for event in events])


def test_sseclient_py(gateway: Server) -> None:
    url = f"{gateway.url}/v2/models/{gateway.model}/generate_stream"
    with requests.post(url, json=PAGE_DOCUMENT, stream=True, timeout=60) as response:
        events = list(sseclient.SSEClient(response).events())
    check_frames([json.loads(event.data) for event in events])
