"""Server processes under measurement: start, wait, CPU time, memory, stop."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

_OF_PROCESS: Final = 2
"""Linux's CPUCLOCK_SCHED, in the id of a process's CPU clock."""
_START_TIMEOUT: Final = 300.0
ENVIRONMENT: Final = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class ServerProcess:
    """One server; its own process only, without its children, is measured."""

    def __init__(self, port: int, process: subprocess.Popen[bytes]) -> None:
        self.port = port
        self._process = process

    @property
    def cpu(self) -> float:
        """Seconds of CPU used so far, user and system."""
        # clock_getcpuclockid(3), which Python does not have; /proc counts in hundredths.
        return time.clock_gettime((~self._process.pid << 3) | _OF_PROCESS)

    @property
    def memory(self) -> int:
        """Resident bytes."""
        pages = int(Path(f"/proc/{self._process.pid}/statm").read_text("ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def wait_ready(self, path: str) -> None:
        """Wait for a 200. RuntimeError when the process ends or takes too long."""
        deadline = time.monotonic() + _START_TIMEOUT
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise RuntimeError(f"the server ended with {self._process.returncode}")
            with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
                url = f"http://127.0.0.1:{self.port}{path}"
                with urllib.request.urlopen(url, timeout=5):
                    return
            time.sleep(0.2)
        raise RuntimeError("the server did not get ready")

    def stop(self) -> None:
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(30)
            return
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def server(
    ready: str,
    *command: str,
    core: int | None = None,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[ServerProcess]:
    """Run `python -m command`, `{port}` replaced by a free port, on one core if asked."""
    port = free_port()
    words = [word.replace("{port}", str(port)) for word in command]
    if core is not None:
        words = ["taskset", "-c", str(core % (os.cpu_count() or 1)), sys.executable, "-m", *words]
    else:
        words = [sys.executable, "-m", *words]
    process = subprocess.Popen(words, env={**os.environ, **ENVIRONMENT, **environment})
    running = ServerProcess(port, process)
    try:
        running.wait_ready(ready)
        yield running
    finally:
        running.stop()
