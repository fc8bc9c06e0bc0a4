"""The hand-over of one request's tokens, from an engine to its reader.

The engine side pushes from the event loop without waiting; the reader takes
everything there is at once. What can pile up while a slow client blocks the
reader is bounded by the request itself: it makes at most `max_tokens` tokens.

A reader may leave a `taker` behind. While it waits, a token goes straight to the
taker, in the engine's own task: no wake-up and no task switch for each token.
Whatever the taker does not want, and every end, goes the ordinary way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from translators.errors import GatewayError
from translators.tokens import FinishReason, Token


class TokenStream:
    """Tokens of one request, in order, as an async iterator of non-empty lists.

    Ends after the token that carries a finish, or when `stop` was called;
    raises the GatewayError given to `fail` after all tokens before it.
    """

    __slots__ = (
        "_cancel",
        "_ended",
        "_error",
        "_loop",
        "_observer",
        "_pending",
        "_start",
        "_taker",
        "_waiter",
        "_waiting",
        "finish",
        "last_push",
    )

    def __init__(self, cancel: Callable[[], None]) -> None:
        self._cancel = cancel
        self._loop = asyncio.get_running_loop()
        self._pending: list[Token] = []
        self._waiter: asyncio.Future[None] | None = None
        self._waiting = False
        self._taker: Callable[[Token], bool] | None = None
        self._observer: Callable[[Token], None] | None = None
        self._error: GatewayError | None = None
        self.finish: FinishReason | None = None
        """Why the engine ended it; None while it has not."""
        self._ended = False
        self._start = self.last_push = self._loop.time()
        """Loop time of the latest token, or of the start."""

    def push(self, token: Token) -> None:
        """Engine side: one more token. Ignored once the stream has ended."""
        if self._ended:
            return
        self.last_push = self._loop.time()
        if self._observer is not None:
            self._observer(token)
        if token.finish is not None:
            self._ended = True
            self.finish = token.finish.reason
        elif self._waiting and self._taker is not None and self._taker(token):
            return
        self._pending.append(token)
        self._wake()

    def fail(self, error: GatewayError) -> None:
        """Break the stream: by the engine, or by a clock. The first end wins."""
        if not self._ended:
            self._error = error
            self._end()

    def stop(self) -> None:
        """End the stream normally, without a finish (stopInfer)."""
        if not self._ended:
            self._end()

    def close(self) -> None:
        """Reader side: nobody reads any more. The engine's request is cancelled."""
        self._pending.clear()
        if not self._ended:
            self._end()

    def hand_to(self, taker: Callable[[Token], bool]) -> None:
        """Reader side: offer each token to `taker` while the reader waits.

        It is called in the engine's task, must not raise, and says whether it
        took the token.
        """
        self._taker = taker

    def observe(self, observer: Callable[[Token], None]) -> None:
        """Show every token to `observer` as it comes, and now those that nobody has taken yet."""
        for token in self._pending:
            observer(token)
        self._observer = observer

    def raise_if_failed(self) -> None:
        """Reader side: raise what broke the stream, once all tokens before it are taken."""
        if self._error is not None and not self._pending:
            raise self._error

    @property
    def idle(self) -> bool:
        """Whether the reader has taken everything and waits for the engine."""
        return not self._pending and not self._ended

    @property
    def owed(self) -> bool:
        """Whether more tokens have to come, whoever reads them."""
        return not self._ended

    @property
    def last_token(self) -> float:
        """Loop time of the latest token; 0 before the first."""
        return self.last_push if self.last_push > self._start else 0.0

    async def accepted(self) -> None:
        """Reader side, before all else: wait until it is clear that the engine takes the request.

        It is as soon as there is a stream, unless the engine is elsewhere. Raises its refusal.
        """

    def __aiter__(self) -> TokenStream:
        return self

    async def __anext__(self) -> list[Token]:
        while not self._pending:
            if self._ended:
                self.raise_if_failed()
                raise StopAsyncIteration
            self._waiter = self._loop.create_future()
            self._waiting = True
            await self._waiter
        tokens, self._pending = self._pending, []
        return tokens

    def _end(self) -> None:
        self._ended = True
        self._cancel()
        self._wake()

    def _wake(self) -> None:
        self._waiting = False
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


def stopped_stream() -> TokenStream:
    """The stream of a request that was stopped before it reached an engine."""
    stream = TokenStream(lambda: None)
    stream.stop()
    return stream
