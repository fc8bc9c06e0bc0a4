"""One request's tokens with their text and their times, however they were read."""

from __future__ import annotations

from proxy.engines.detokenizer import Detokenizer
from proxy.engines.stream import TokenStream
from translators.tokens import Finish, FinishReason, Token


class TokenRun:
    """Turns steps of an engine into the tokens of one stream.

    All times are seconds of the engine's own monotonic clock. Differences are
    never negative: a stamp that is missing counts as "just now".
    """

    def __init__(self, request_id: str, stream: TokenStream, detokenizer: Detokenizer) -> None:
        self.request_id = request_id
        self.stream = stream
        self._detokenizer = detokenizer
        self._previous: float | None = None
        self._waiting_since: float | None = None
        self._waited = 0.0

    def queued(self, at: float) -> None:
        """The engine took the request into its queue."""
        if self._previous is None:
            self._previous = at
        self._waiting_since = at

    def scheduled(self, at: float) -> None:
        """The engine's scheduler picked the request, for the first time or again."""
        if self._waiting_since is not None:
            self._waited += max(at - self._waiting_since, 0.0)
            self._waiting_since = None

    def preempted(self, at: float) -> None:
        """The scheduler put the request back into the queue."""
        self._waiting_since = at

    def tokens(
        self, ids: list[int], at: float, batch_size: int, reason: FinishReason | None
    ) -> None:
        """The tokens of one step. All but the first came at the same moment."""
        last = len(ids) - 1
        for index, token_id in enumerate(ids):
            ends = reason if index == last else None
            self.token(token_id, at, batch_size, ends)

    def token(self, token_id: int, at: float, batch_size: int, reason: FinishReason | None) -> None:
        """One token that came at `at`."""
        previous = at if self._previous is None else self._previous
        # The token that ends a text is no part of it, special or not.
        text = "" if reason is FinishReason.END else self._detokenizer.push(token_id)
        finish = None if reason is None else Finish(reason, self._detokenizer.flush())
        token = Token(
            token_id, text, max(at - previous, 0.0), self._waited, max(batch_size, 1), finish
        )
        self._previous, self._waited = max(at, previous), 0.0
        self.stream.push(token)
