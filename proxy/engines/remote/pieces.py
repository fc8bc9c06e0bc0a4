"""The text of single tokens, for the chunks in which an upstream merged several.

vLLM merges what it has when the reader of a stream lags, or when it runs with
--stream-interval. The text of such a chunk is cut where its tokens end: each
token's own text is asked from the upstream once (/detokenize) and remembered.
A cut counts only when its parts are exactly the chunk's text. Tokens that are
parts of characters get what stands between their neighbours, a character with
the part that completes it. Where nothing fits, the whole text comes with the
chunk's last token.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from itertools import groupby
from typing import Final, NamedTuple

Detokenize = Callable[[list[int]], Awaitable[str]]
"""Text of token ids, special tokens spelled out; raises GatewayError."""

REPLACEMENT: Final = "\ufffd"
_REMEMBERED: Final = 100_000
"""Tokens whose text is kept: about 10 MB."""
_MOST: Final = 64
"""Tokens of one chunk that are cut apart at most."""
_RUNS: Final = 4
"""Runs of parts of characters in one chunk at most, since they are searched for."""
_AT_ONCE: Final = 8


class Pieces:
    """The texts of one upstream's tokens. None stands for a part of a character."""

    def __init__(self, detokenize: Detokenize) -> None:
        self._detokenize = detokenize
        self._known: dict[int, str | None] = {}
        self._gate = asyncio.Semaphore(_AT_ONCE)

    async def cut(self, begun: Sequence[int], ids: Sequence[int], text: str) -> list[str]:
        """`text`, which all of `ids` made, as one string per token.

        `begun` are the tokens before them that have shown no text yet.
        """
        if text and 1 < len(ids) <= _MOST:
            pieces = [await self._piece(token_id) for token_id in ids]
            runs = fit(pieces, text)
            if runs is not None:
                return await self._cut_runs(begun, ids, pieces, runs)
        return whole(ids, text)

    def known(self, ids: Sequence[int], text: str) -> list[str] | None:
        """The same without asking, where every token is known and whole; else None."""
        if len(ids) > _MOST:
            return None
        pieces = [piece for piece in map(self._known.get, ids) if piece is not None]
        return pieces if len(pieces) == len(ids) and "".join(pieces) == text else None

    async def _cut_runs(
        self,
        begun: Sequence[int],
        ids: Sequence[int],
        pieces: Sequence[str | None],
        runs: Sequence[Run],
    ) -> list[str]:
        parts: list[str] = []
        for run in runs:
            begin, end = len(parts), len(parts) + run.length
            if run.text is None:
                parts += [piece or "" for piece in pieces[begin:end]]
            else:
                before = [] if begin else await self._parts(begun)
                parts += await self._cut_characters(before, ids[begin:end], run.text)
        return parts

    async def _cut_characters(
        self, before: Sequence[int], ids: Sequence[int], text: str
    ) -> list[str]:
        """The characters of `text`, each with the token that completes it."""
        parts: list[str] = []
        shown = 0
        for end in range(1, len(ids)):
            so_far = await self._detokenize([*before, *ids[:end]]) if text else ""
            complete = text.startswith(so_far)
            parts.append(so_far[shown:] if complete else "")
            shown = len(so_far) if complete else shown
        return [*parts, text[shown:]]

    async def tail(self, ids: Sequence[int]) -> str:
        """What `ids`, none of which gave text, hold of an incomplete character."""
        parts = await self._parts(ids)
        return await self._detokenize(parts) if parts else ""

    async def _parts(self, ids: Sequence[int]) -> list[int]:
        return [token_id for token_id in ids if await self._piece(token_id) is None]

    async def spelled(self, token_id: int) -> str:
        """A token's text by itself, as the tokenizer decodes it."""
        piece = await self._piece(token_id)
        return await self._detokenize([token_id]) if piece is None else piece

    async def _piece(self, token_id: int) -> str | None:
        if token_id not in self._known:
            async with self._gate:
                twice = await self._detokenize([token_id, token_id])
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[token_id] = second_half(twice)
        return self._known[token_id]


def whole(ids: Sequence[int], text: str) -> list[str]:
    """One string per token where nobody can tell them apart: all of `text` with the last."""
    return [""] * (len(ids) - 1) + [text]


def second_half(twice: str) -> str | None:
    """A token's text within a text, from the text of the token twice.

    Some tokenizers drop the space before the first word of a text, so the first
    half may be one shorter. None for a part of a character.
    """
    return None if REPLACEMENT in twice else twice[len(twice) // 2 :]


class Run(NamedTuple):
    """Tokens side by side, all whole (`text` None) or all parts of characters."""

    length: int
    text: str | None


def fit(pieces: Sequence[str | None], text: str) -> list[Run] | None:
    """The text of each run of parts, if the whole pieces around them fit; else None."""
    grouped = groupby(pieces, lambda piece: piece is not None)
    runs = [(known, list(run)) for known, run in grouped]
    if sum(not known for known, _ in runs) > _RUNS:
        return None
    pattern = "".join(
        re.escape("".join(filter(None, run))) if known else "(.*?)" for known, run in runs
    )
    match = re.fullmatch(pattern, text, re.DOTALL)
    if match is None:
        return None
    between = iter(match.groups())
    return [Run(len(run), None if known else next(between)) for known, run in runs]
