"""The processes below another one, as Linux shows them in /proc."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")


class Descendant(NamedTuple):
    """A process. Its start time tells it from a later one with the same id."""

    pid: int
    started: str

    def lives(self) -> bool:
        """Whether it still runs; one that has ended and is not yet buried does not."""
        stat = _stat(self.pid)
        return stat is not None and stat[19] == self.started and stat[0] not in "ZX"

    def title(self) -> str:
        """Its command line, or what it has put in its place."""
        try:
            return (PROC / str(self.pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            return ""

    def kill(self) -> None:
        if self.lives():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


def descendants(pid: int) -> set[Descendant]:
    """Children, children's children, and so on."""
    processes = {process: stat for process, stat in _all() if stat[0] not in "ZX"}
    found, begin = set(), {pid}
    while begin:
        begin = {process for process, stat in processes.items() if int(stat[1]) in begin}
        found |= begin
    return {Descendant(process, processes[process][19]) for process in found}


def _all() -> Iterator[tuple[int, list[str]]]:
    for entry in PROC.iterdir():
        if entry.name.isdecimal() and (stat := _stat(int(entry.name))) is not None:
            yield int(entry.name), stat


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/<pid>/stat after the name: state, parent, ... start time (19)."""
    try:
        return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
