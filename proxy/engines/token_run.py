"""One request's tokens with their text and their times, however they were read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from proxy.engines.detokenizer import Detokenizer
from proxy.engines.stream import TokenStream
from translators.tokens import Alternative, Finish, FinishReason, Token


class Logprobs(NamedTuple):
    """The log probabilities at one token's place."""

    own: float
    top: Sequence[tuple[int, float]] = ()
    """Token ids and their log probabilities, best first."""


class TokenRun:
    """Turns steps of an engine into the tokens of one stream.

    All times are seconds of the engine's own monotonic clock. Differences are
    never negative: a stamp that is missing counts as "just now". `piece` gives
    the text of a token by itself, for the alternatives of `top`.
    """

    __slots__ = (
        "_detokenizer",
        "_piece",
        "_previous",
        "_waited",
        "_waiting_since",
        "request_id",
        "stream",
    )

    def __init__(
        self,
        request_id: str,
        stream: TokenStream,
        detokenizer: Detokenizer,
        piece: Callable[[int], str],
    ) -> None:
        self.request_id = request_id
        self.stream = stream
        self._detokenizer = detokenizer
        self._piece = piece
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
        self,
        ids: list[int],
        at: float,
        batch_size: int,
        reason: FinishReason | None,
        logprobs: Sequence[Logprobs] | None = None,
    ) -> None:
        """The tokens of one step. All but the first came at the same moment."""
        last = len(ids) - 1
        for index, token_id in enumerate(ids):
            ends = reason if index == last else None
            self.token(token_id, at, batch_size, ends, logprobs[index] if logprobs else None)

    def token(
        self,
        token_id: int,
        at: float,
        batch_size: int,
        reason: FinishReason | None,
        logprobs: Logprobs | None = None,
    ) -> None:
        """One token that came at `at`."""
        latency = 0.0 if self._previous is None else at - self._previous
        if latency < 0.0:
            latency = 0.0
        else:
            self._previous = at
        # The token that ends a text is no part of it, special or not.
        text = "" if reason is FinishReason.END else self._detokenizer.push(token_id)
        finish = None if reason is None else Finish(reason, self._detokenizer.flush())
        token = Token(token_id, text, latency, self._waited, batch_size or 1, finish)
        if logprobs is not None:
            token = token._replace(logprob=logprobs.own, top=self._alternatives(logprobs))
        self._waited = 0.0
        self.stream.push(token)

    def _alternatives(self, logprobs: Logprobs) -> tuple[Alternative, ...]:
        return tuple(
            Alternative(token_id, self._piece(token_id), logprob)
            for token_id, logprob in logprobs.top
        )
