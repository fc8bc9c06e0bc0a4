"""The gateway over an engine of `sources`: `python -m tests.bench.serve_source NAME PORT`."""

from __future__ import annotations

import sys

import uvloop

from proxy.engines.base import Engine
from proxy.lifecycle import Process
from proxy.listeners import bind_all
from proxy.settings import Settings
from tests.bench.sources import ENGINES


def main() -> int:
    """Serve until a signal."""
    name, port = sys.argv[1], int(sys.argv[2])

    async def factory() -> Engine:
        return ENGINES[name]()

    async def serve() -> int:
        settings = Settings(port=port, log_level="warning", drain_timeout=0)
        return await Process(settings, factory).serve(*bind_all(settings))

    return uvloop.run(serve())


if __name__ == "__main__":
    sys.exit(main())
