"""The texts of one upstream's tokens, as far as it tells them (/detokenize).

A stream waits for them with tokens in hand, so it does not wait long. A server
that failed or was late once is not asked by any stream, until a look at it
(`look`, with each check of its health) gets an answer: what is known by then
goes on to be used, and the rest is as with a server that does not offer it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import Final, TypeVar

from proxy.engines.remote.pieces import Detokenize, Pieces, whole
from translators.errors import GatewayError, IncompleteGeneration

log = logging.getLogger(__name__)

T = TypeVar("T")

_PATIENCE: Final = 0.8
"""Seconds that tokens wait for all that is asked about them: less than the shortest timeout of
contract §3, and more than one answer may take (`probe.SOON`)."""
_ANY: Final = 0
"""A token that every vocabulary has."""


class Spelling:
    """What is known and asked of one server, called `name` in the log."""

    def __init__(self, name: str, detokenize: Detokenize) -> None:
        self._name = name
        self._detokenize = detokenize
        self._pieces = Pieces(self._ask)
        self._offered = self._answers = False

    def begin(self, *, offered: bool) -> None:
        """The server has come up, with /detokenize or without."""
        self._offered = self._answers = offered

    def known(self, ids: list[int], text: str) -> list[str] | None:
        """The text of a merged chunk, token by token, where that is known; else None."""
        return self._pieces.known(ids, text)

    async def cut(self, begun: list[int], ids: list[int], text: str) -> list[str]:
        """The same, with what has to be asked; `begun` gave no text before it."""
        return await self._told(self._pieces.cut(begun, ids, text), whole(ids, text))

    async def tail(self, ids: list[int]) -> str:
        """What tokens without text hold of an incomplete character."""
        return await self._told(self._pieces.tail(ids), "")

    async def spelled(self, token_id: int) -> str:
        """A token's text by itself."""
        return await self._told(self._pieces.spelled(token_id), "")

    async def look(self) -> None:
        """Ask a server again that failed to answer."""
        if self._answers or not self._offered:
            return
        try:
            await self._detokenize([_ANY])
        except GatewayError:
            return
        self._answers = True
        log.info("%s answers /detokenize again", self._name)

    async def _told(self, answer: Awaitable[T], otherwise: T) -> T:
        try:
            async with asyncio.timeout(_PATIENCE):
                return await answer
        except (GatewayError, TimeoutError):
            return otherwise

    async def _ask(self, ids: list[int]) -> str:
        if not self._answers:
            raise IncompleteGeneration("the engine does not tell the texts of tokens")
        try:
            return await self._detokenize(ids)
        except GatewayError as error:
            self._give_up(error)
            raise

    def _give_up(self, error: GatewayError) -> None:
        if self._answers:
            self._answers = False
            log.info(
                "%s fails to answer /detokenize (%s): until it does, the text of a merged chunk "
                "comes with its last token",
                self._name,
                error.message,
            )
