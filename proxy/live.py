"""The requests that are being answered now, by the id their clients know them by."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from proxy.engines.stream import TokenStream
from translators.errors import GatewayError


class LiveRequests:
    """Live token streams. Several may carry the same client id (contract §2)."""

    def __init__(self) -> None:
        self._streams: dict[str, set[TokenStream]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._streams.values()))

    @contextmanager
    def tracked(self, client_id: str, stream: TokenStream) -> Iterator[None]:
        """Keep `stream` among the live ones; at the end its engine request is gone."""
        self._streams.setdefault(client_id, set()).add(stream)
        try:
            yield
        finally:
            streams = self._streams[client_id]
            streams.discard(stream)
            if not streams:
                del self._streams[client_id]
            stream.close()

    def stop(self, client_id: str) -> int:
        """End every live request with this id normally; returns how many there were."""
        streams = list(self._streams.get(client_id, ()))
        for stream in streams:
            stream.stop()
        return len(streams)

    def break_all(self, error: GatewayError) -> None:
        """End every live request with an error (contract §5)."""
        for streams in list(self._streams.values()):
            for stream in list(streams):
                stream.fail(error)
