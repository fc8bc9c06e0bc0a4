"""Waits until the gateway is ready, then prints a request to try.

    announce.py PORT MODEL_NAME GATEWAY_PID

Runs beside the gateway, detached from it, and ends with it.
"""

from __future__ import annotations

import http.client
import os
import sys
import time
from typing import Final

_HOST: Final = "127.0.0.1"
_PAUSE: Final = 0.5
_BEAT: Final = 15.0
_ANSWER_TIMEOUT: Final = 5.0
_READY: Final = 200
_NOT_READY: Final = 503
_ELSEWHERE: Final = 404

_TEXT: Final = """
Ready. In another terminal:

curl -N http://{host}:{port}/v2/models/{name}/generate_stream \\
  -H 'Content-Type: application/json' -d '{{
    "id": "a123",
    "text_input": "My name is Olivier and I",
    "parameters": {{
        "details": true,
        "do_sample": true,
        "max_new_tokens": 5,
        "repetition_penalty": 1.1,
        "seed": 123,
        "temperature": 1,
        "top_k": 10,
        "top_p": 0.99,
        "batch_size": 100,
        "typical_p": 0.5,
        "watermark": false,
        "priority": 5,
        "timeout": 10
    }}
}}'

Ctrl-C stops the gateway."""


def main(port: int, name: str, gateway: int) -> None:
    """Print once ready; say nothing when the gateway ends before."""
    begun = said = time.monotonic()
    while _runs(gateway):
        ready = _is_ready(port, name)
        if ready is None:
            return
        if ready:
            print(_TEXT.format(host=_HOST, port=port, name=name), flush=True)
            return
        now = time.monotonic()
        if now - said >= _BEAT:
            said = now
            print(f"      still loading: {round(now - begun)} s", flush=True)
        time.sleep(_PAUSE)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _is_ready(port: int, name: str) -> bool | None:
    """None where it cannot be told from here: behind TLS, or behind API keys elsewhere."""
    try:
        status = _status(port, "/v2/health/ready")
        if status == _ELSEWHERE:  # health has a port of its own
            status = _status(port, f"/v2/models/{name}")
    except (ConnectionRefusedError, TimeoutError):
        return False  # it does not listen yet, or is busy with its start
    except (OSError, http.client.HTTPException):
        return None
    return {_READY: True, _NOT_READY: False}.get(status)


def _status(port: int, path: str) -> int:
    connection = http.client.HTTPConnection(_HOST, port, timeout=_ANSWER_TIMEOUT)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


if __name__ == "__main__":
    if os.fork() == 0:
        os.setsid()  # Ctrl-C is meant for the gateway
        main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
