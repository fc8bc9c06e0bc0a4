"""The bytes of one medium: in memory while few, else in a file without a name.

Such a file (O_TMPFILE) vanishes with its last descriptor: whatever ends a
request, or the process, leaves nothing behind.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from proxy.threads import joined
from translators.errors import ServiceUnavailable
from translators.media import TextPart
from translators.media_formats import MIB, MediaFormat, MediaKind

BLOCK: Final = MIB
"""Bytes that are written to disk, or decoded, at a time."""
_RESERVE: Final = 1.5
"""Free disk that a promise needs, as a multiple of it (the page's coefficient)."""


class Content:
    """Finished bytes, read at any place. Owns its file descriptor; `close` frees it."""

    def __init__(self, size: int, *, memory: bytes | None = None, fd: int | None = None) -> None:
        self.size = size
        self._memory = memory
        self._fd = fd

    def read_at(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes from `offset`; never more than `self.size` in all."""
        size = max(min(size, self.size - offset), 0)
        if self._memory is not None:
            return self._memory[offset : offset + size]
        if self._fd is None:
            return b""
        return os.pread(self._fd, size, offset)

    def read(self) -> bytes:
        """All bytes. Blocks on the disk: call it in a thread."""
        if self._memory is not None:
            return self._memory
        return b"".join(self.blocks())

    def blocks(self, size: int = BLOCK) -> Iterator[bytes]:
        """All bytes, in blocks of `size` but for the last."""
        offset = 0
        while block := self.read_at(offset, size):
            # A local file may be read short at any place, also while it changes.
            while len(block) < size and (more := self._more(offset, block, size)):
                block += more
            yield block
            offset += len(block)

    def _more(self, offset: int, block: bytes, size: int) -> bytes:
        return self.read_at(offset + len(block), size - len(block))

    def duplicate(self) -> Content:
        """The same bytes with a life of their own."""
        fd = None if self._fd is None else os.dup(self._fd)
        return Content(self.size, memory=self._memory, fd=fd)

    def descriptor(self) -> int:
        """A new descriptor at the beginning, for a process that reads by itself. Blocks."""
        if self._fd is not None:
            # Opened anew: a duplicate would share its place in the file.
            return os.open(f"/proc/self/fd/{self._fd}", os.O_RDONLY | os.O_CLOEXEC)
        fd = os.memfd_create("medium")
        try:
            view = memoryview(self._memory or b"")
            while view:
                view = view[os.write(fd, view) :]
            os.lseek(fd, 0, os.SEEK_SET)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def close(self) -> None:
        """Free the bytes. Safe to call twice."""
        fd, self._fd, self._memory = self._fd, None, None
        if fd is not None:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class Medium:
    """One medium, fetched and checked."""

    index: int
    """Its place in the client's list."""
    kind: MediaKind
    format: MediaFormat
    content: Content


PromptPart = TextPart | Medium


class Spool:
    """Takes bytes as they come; `finish` makes the content of them."""

    def __init__(self, directory: str | None, memory_limit: int) -> None:
        self._directory = directory
        self._memory_limit = memory_limit
        self._buffer = bytearray()
        self._fd: int | None = None
        self.size = 0

    async def write(self, data: bytes) -> None:
        """Append; goes to disk beyond the memory limit, in a thread."""
        self.size += len(data)
        self._buffer += data
        if len(self._buffer) > (self._memory_limit if self._fd is None else BLOCK):
            await joined(self._flush)

    async def finish(self) -> Content:
        """The content of everything written. The spool is empty afterwards."""
        if self._fd is None:
            return Content(self.size, memory=bytes(self._buffer))
        await joined(self._flush)
        content, self._fd = Content(self.size, fd=self._fd), None
        return content

    def _flush(self) -> None:
        try:
            if self._fd is None:
                self._fd = _nameless_file(self._directory)
            view = memoryview(self._buffer)
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError:
            raise ServiceUnavailable("media cannot be kept on disk", retry_after=10) from None
        self._buffer = bytearray()

    def close(self) -> None:
        """Free what was not finished. Safe to call twice."""
        self._buffer = bytearray()
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


def _nameless_file(directory: str | None) -> int:
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        return os.dup(file.fileno())


class DiskReserve:
    """Promises of disk space: none is given that the disk cannot keep."""

    def __init__(self, directory: str | None) -> None:
        self.directory = directory or tempfile.gettempdir()
        self._promised = 0

    @contextmanager
    def hold(self, size: int) -> Iterator[None]:
        """Promise `size` bytes. ServiceUnavailable when 1.5 times all promises do not fit."""
        if size and self.free() < _RESERVE * (self._promised + size):
            raise ServiceUnavailable("there is no disk space for media now", retry_after=10)
        self._promised += size
        try:
            yield
        finally:
            self._promised -= size

    def free(self) -> int:
        """Free bytes on the disk."""
        return shutil.disk_usage(self.directory).free

    @staticmethod
    def needed(largest: int, concurrent: int) -> int:
        """The page's formula: largest file, times concurrent requests, times 1.5."""
        return int(largest * concurrent * _RESERVE)
