"""Server-sent events from blocks of bytes of any size, without a reader of lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

_DATA: Final = b"data:"


class LineTooLongError(Exception):
    """A line exceeds what an honest upstream sends."""


class SseSplitter:
    """Blocks in, payloads of `data:` lines out; bytes are never decoded here.

    One line is one event, as vLLM writes them. Comments, empty lines and other
    fields are skipped. No more than `limit` bytes of a line are ever held.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._begun = bytearray()

    def feed(self, block: bytes) -> Iterable[bytes]:
        """The payloads that end in this block; then LineTooLongError, if a line is."""
        *lines, rest = block.split(b"\n")
        if lines and self._begun:
            lines[0] = bytes(self._begun + lines[0])
            self._begun.clear()
        self._begun += rest
        longest = max(len(block), len(self._begun), len(lines[0]) if lines else 0)
        if longest > self._limit:
            return self._bounded(lines)
        return [line[len(_DATA) :].strip() for line in lines if line.startswith(_DATA)]

    def _bounded(self, lines: list[bytes]) -> Iterator[bytes]:
        """The same with a look at each line's length, for blocks that could hold too long a one."""
        for line in lines:
            if len(line) > self._limit:
                raise LineTooLongError
            if line.startswith(_DATA):
                yield line[len(_DATA) :].strip()
        if len(self._begun) > self._limit:
            raise LineTooLongError
