"""Files that are read again when they change, or when SIGHUP asks for it.

Certificates are renewed and keys are rotated while streams run. New content
that cannot be used changes nothing: what was in force stays so, and the log and
a metric say it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from proxy.settings import SettingsError

log = logging.getLogger(__name__)

PERIOD: Final = 1.0
"""Seconds between looks at the files."""
Stamp = tuple[int, int, int] | None


@dataclass
class Watched:
    """Some files, and what reads them. `read` raises SettingsError and then changes nothing."""

    name: str
    files: Sequence[Path]
    read: Callable[[], Awaitable[None]]
    stamps: list[Stamp] = field(default_factory=list)

    def changed(self) -> bool:
        """Whether a file is another than at the last look."""
        before, self.stamps = self.stamps, [_stamp(file) for file in self.files]
        return self.stamps != before


class Reloader:
    """Reads everything once when it is added, and again upon each change.

    `on_failure` gets the name of what could not be read again.
    """

    def __init__(self, on_failure: Callable[[str], None]) -> None:
        self._watched: list[Watched] = []
        self._on_failure = on_failure
        self._asked = asyncio.Event()

    async def add(
        self, name: str, files: Sequence[Path], read: Callable[[], Awaitable[None]]
    ) -> None:
        """Read now and watch from now on. Raises what `read` raises."""
        watched = Watched(name, files, read)
        watched.changed()
        await read()
        self._watched.append(watched)

    def ask(self) -> None:
        """Have everything read again soon, changed or not."""
        self._asked.set()

    async def run(self) -> None:
        """Look at the files for ever."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PERIOD):
                    await self._asked.wait()
            everything = self._asked.is_set()
            self._asked.clear()
            await self.look(everything=everything)

    async def look(self, *, everything: bool = False) -> None:
        """Read again what has changed since the last look, or everything."""
        for watched in self._watched:
            if watched.changed() or everything:
                await self._read(watched)

    async def _read(self, watched: Watched) -> None:
        try:
            await watched.read()
        except SettingsError as error:
            log.error("the old %s stay in force: %s", watched.name, error)
            self._on_failure(watched.name)
        else:
            log.info("%s read again", watched.name)


def _stamp(file: Path) -> Stamp:
    # Kubernetes swaps a symbolic link: the inode changes even if the time does not.
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
