"""The gateway over an engine of `sources`: `python -m tests.bench.serve_source NAME PORT`."""

from __future__ import annotations

import os
import sys

import uvloop

from proxy.engines.base import Engine
from proxy.lifecycle import Process
from proxy.listeners import bind_all
from proxy.settings import Settings
from tests.bench.media_neighbours import MEDIA_ROOT
from tests.bench.sources import ENGINES


def main() -> int:
    """Serve until a signal."""
    name, port = sys.argv[1], int(sys.argv[2])

    async def factory() -> Engine:
        return ENGINES[name]()

    async def serve() -> int:
        settings = Settings(
            port=port,
            log_level="warning",
            drain_timeout=0,
            # For the pictures of P10, on this machine's own loopback.
            allowed_media_domains="127.0.0.1",
            media_private_networks="127.0.0.1/32",
            media_root=os.environ.get(MEDIA_ROOT, "/nowhere"),
        )
        return await Process(settings, factory).serve(*bind_all(settings))

    return uvloop.run(serve())


if __name__ == "__main__":
    sys.exit(main())
