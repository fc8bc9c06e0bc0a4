"""curl, straight and through nginx, with HTTP/1.1 and 1.0."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.clients.conftest import Server
from tests.clients.page import check_frames
from tests.page import PAGE_REQUEST


def _curl(server: Server, *flags: str) -> list[dict[str, object]]:
    url = f"{server.url}/v2/models/{server.model}/generate_stream"
    words = ["curl", "-sSfN", *flags, url, "-d", PAGE_REQUEST]
    done = subprocess.run(words, capture_output=True, check=True, timeout=60)
    blocks = done.stdout.decode().split("\n\n")
    assert blocks.pop() == "", "the last frame must end like every other"
    return [json.loads(block.removeprefix("data:")) for block in blocks]


@pytest.mark.parametrize("version", ["--http1.1", "--http1.0"])
def test_curl(gateway: Server, version: str) -> None:
    check_frames(_curl(gateway, version))


@pytest.mark.parametrize("version", ["--http1.1", "--http1.0"])
def test_curl_through_nginx(nginx: Server, version: str) -> None:
    check_frames(_curl(nginx, version))


def test_frames_pass_nginx_one_by_one(nginx: Server) -> None:
    """`X-Accel-Buffering: no` must reach nginx: the first frame is here before the last is made."""
    body = {"text_input": "Once upon a time", "parameters": {"max_new_tokens": 60}}
    url = f"{nginx.url}/v2/models/{nginx.model}/generate_stream"
    words = ["curl", "-sSfN", url, "-d", json.dumps(body)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as curl:
        assert curl.stdout is not None
        assert curl.stdout.readline().startswith(b"data:")
        assert curl.poll() is None, "everything came at once"
        rest = curl.stdout.read()
    assert rest.count(b"data:") == 59
