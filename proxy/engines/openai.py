"""The OpenAI API of an engine: what a client sends goes through, and back, untouched.

The gateway does not read these requests. It only keeps what belongs to one
connection (hop-by-hop headers, RFC 9110 §7.6.1) from crossing to the next.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Final, Protocol

Headers = tuple[tuple[str, str], ...]

HOP_BY_HOP: Final = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)


@dataclass(frozen=True, slots=True)
class OpenAIRequest:
    """One request to /v1. `target` is path and query as the client wrote them."""

    method: str
    target: str
    headers: Headers
    body: bytes


class OpenAIAnswer(Protocol):
    """The answer, as it comes."""

    status: int
    headers: Headers

    def blocks(self) -> AsyncIterator[bytes]:
        """The body. Raises GatewayError when it breaks off."""

    def close(self) -> None:
        """Nobody reads any more. Safe to call twice, and after the end."""


class OpenAIApi(Protocol):
    """The way to it."""

    async def open(self, request: OpenAIRequest) -> OpenAIAnswer:
        """Hand a request over; returns with the head of the answer. Raises GatewayError."""


def end_to_end(headers: Iterable[tuple[str, str]], *, without: Iterable[str] = ()) -> Headers:
    """The headers that go on to the next hop. `without` names more to leave out, in lower case."""
    pairs = tuple(headers)
    dropped = HOP_BY_HOP | set(without)
    for name, value in pairs:
        if name.lower() == "connection":
            dropped |= {token.strip().lower() for token in value.split(",")}
    return tuple((name, value) for name, value in pairs if name.lower() not in dropped)
