"""The requests that are being answered now, by the id their clients know them by."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from translators.errors import GatewayError


class Live(Protocol):
    """What runs, or waits for its turn: a token stream, or a place in the queue."""

    @property
    def owed(self) -> bool:
        """Whether the engine owes it a token."""

    @property
    def last_token(self) -> float:
        """Loop time of its latest token; 0 before the first."""

    def stop(self) -> None:
        """End it normally."""

    def fail(self, error: GatewayError) -> None:
        """End it with an error."""

    def close(self) -> None:
        """Free what it holds."""


class LiveRequests:
    """Live requests. Several may carry the same client id (contract §2)."""

    def __init__(self) -> None:
        self._ids: dict[Live, str] = {}
        self._last_token = 0.0

    @property
    def owed(self) -> bool:
        """Whether the engine owes a token to any."""
        return any(stream.owed for stream in self._ids)

    @property
    def last_token(self) -> float:
        """Loop time of the latest token of any request; 0 before the first ever."""
        latest = (stream.last_token for stream in self._ids)
        return max(self._last_token, *latest, 0.0)

    def __len__(self) -> int:
        return len(self._ids)

    def tracked(self, client_id: str, stream: Live) -> AbstractContextManager[None]:
        """Keep `stream` among the live ones for a block; then its engine request is gone."""
        return _Tracked(self, client_id, stream)

    def add(self, client_id: str, stream: Live) -> None:
        """Begin to keep `stream`."""
        self._ids[stream] = client_id

    def remove(self, stream: Live) -> None:
        """Forget `stream`, and end what the engine still does for it."""
        del self._ids[stream]
        self._last_token = max(self._last_token, stream.last_token)
        stream.close()

    def stop(self, client_id: str) -> int:
        """End every live request with this id normally; returns how many there were."""
        # Seldom asked, so that no index by id is kept for each request.
        streams = [stream for stream, its in self._ids.items() if its == client_id]
        for stream in streams:
            stream.stop()
        return len(streams)

    def break_all(self, error: GatewayError) -> None:
        """End every live request with an error (contract §5)."""
        for stream in list(self._ids):
            stream.fail(error)


class _Tracked(AbstractContextManager[None]):
    __slots__ = ("_client_id", "_requests", "_stream")

    def __init__(self, requests: LiveRequests, client_id: str, stream: Live) -> None:
        self._requests = requests
        self._client_id = client_id
        self._stream = stream

    def __enter__(self) -> None:
        self._requests.add(self._client_id, self._stream)

    def __exit__(self, *failure: object) -> None:
        self._requests.remove(self._stream)
