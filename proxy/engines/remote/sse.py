"""Server-sent events from blocks of bytes of any size, without a reader of lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

_DATA: Final = b"data:"
_FIRST: Final = b"data: "
_NEXT: Final = b"\n\ndata: "


class LineTooLongError(Exception):
    """A line exceeds what an honest upstream sends."""


class SseSplitter:
    """Blocks in, payloads of `data:` lines out; bytes are never decoded here.

    One line is one event, as vLLM writes them. Comments, empty lines and other
    fields are skipped. No more than `limit` bytes of a line are ever held.
    """

    __slots__ = ("_begun", "_limit")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._begun = bytearray()

    def feed(self, block: bytes) -> Iterable[bytes]:
        """The payloads that end in this block; then LineTooLongError, if a line is."""
        whole, _, rest = block.rpartition(b"\n")
        if self._begun and len(rest) < len(block):
            whole = bytes(self._begun) + whole
            self._begun.clear()
        self._begun += rest
        if max(len(whole), len(self._begun)) > self._limit:
            return self._bounded(whole.split(b"\n"))
        return _payloads(whole)

    def _bounded(self, lines: list[bytes]) -> Iterator[bytes]:
        """The same with a look at each line's length, for blocks that could hold too long a one."""
        for line in lines:
            if len(line) > self._limit:
                raise LineTooLongError
            if line.startswith(_DATA):
                yield line[len(_DATA) :].strip()
        if len(self._begun) > self._limit:
            raise LineTooLongError


def _payloads(lines: bytes) -> list[bytes]:
    """Those of whole lines, of which the last has lost its end."""
    if lines.startswith(_FIRST) and lines.endswith(b"\n"):
        # As vLLM writes them, nothing but data and empty lines in turn: one cut for each event.
        events = lines[len(_FIRST) : -1].split(_NEXT)
        if lines.count(b"\n") == 2 * len(events) - 1:
            return [event.strip() for event in events]
    return [line[len(_DATA) :].strip() for line in lines.split(b"\n") if line.startswith(_DATA)]
