"""One gateway on the real engine for all clients; nginx in front of it for some."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

# Elsewhere than in `make test-clients` the clients are not installed.
collect_ignore_glob = [] if "GATEWAY_COMMAND" in os.environ else ["test_*.py"]

MODEL = "smollm2"
_START = 300.0


@dataclass(frozen=True)
class Server:
    """Where a gateway, or nginx in front of it, listens."""

    port: int
    model: str = MODEL

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.address}"


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _wait(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START
    while time.monotonic() < deadline:
        assert process.poll() is None, "the server ended"
        with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
            urllib.request.urlopen(url, timeout=5).close()
            return
        time.sleep(0.2)
    pytest.fail("the server did not get ready")


@contextlib.contextmanager
def _running(words: list[str], ready: str) -> Iterator[None]:
    # By itself vLLM takes nearly all memory for its cache, and the machine has nothing left.
    environment = {"VLLM_CPU_KVCACHE_SPACE": "1", **os.environ}
    process = subprocess.Popen(words, env=environment)
    try:
        _wait(ready, process)
        yield
    finally:
        process.terminate()
        process.wait(60)


@pytest.fixture(scope="session")
def gateway() -> Iterator[Server]:
    """The command as users start it, on the real model."""
    server = Server(_free_port())
    words = [os.environ["GATEWAY_COMMAND"], "serve", os.environ["TEST_MODEL"]]
    words += ["--port", str(server.port), "--served-model-name", MODEL]
    # Not compiled: that takes minutes, and goes on while the first requests wait.
    words += ["--dtype", "float32", "--max-model-len", "2048", "--enforce-eager"]
    with _running(words, server.url + "/v2/health/ready"):
        yield server


_NGINX = """
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port};
        location / {{ proxy_pass http://{upstream}; }}
    }}
}}
"""


@pytest.fixture(scope="session")
def nginx(gateway: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """nginx with its default proxy settings: HTTP/1.0 and buffering towards the gateway."""
    command = shutil.which("nginx")
    if command is None:
        pytest.fail("nginx is not on PATH: `make test-clients` puts it there")
    folder: Path = tmp_path_factory.mktemp("nginx")
    server = Server(_free_port())
    config = folder / "nginx.conf"
    text = _NGINX.format(folder=folder, port=server.port, upstream=gateway.address)
    config.write_text(text, "utf-8")
    with _running([command, "-c", str(config)], server.url + "/v2/health/live"):
        yield server
