"""The processes below this one, which must not outlive it."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_TRACKER: Final = b"multiprocessing.resource_tracker"
"""It ends by itself, after it has freed what the others held."""
_ROUNDS: Final = 5
"""Looks for processes that were started while the others were killed."""


def kill_descendants() -> None:
    """Kill children, their children and so on, whoever started them.

    An engine that is still loading does not notice for long that its parent
    has gone, and its processes are not all children of this one.
    """
    for _ in range(_ROUNDS):
        found = [pid for pid in descendants(os.getpid()) if _TRACKER not in _command(pid)]
        if not found:
            return
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def descendants(pid: int) -> set[int]:
    """The running processes below `pid`, at any depth."""
    parents = dict(_parents())
    found: set[int] = set()
    level = {pid}
    while level:
        level = {child for child, parent in parents.items() if parent in level}
        found |= level
    return found


def _parents() -> Iterator[tuple[int, int]]:
    for entry in _PROC.iterdir():
        if not entry.name.isdecimal():
            continue
        with contextlib.suppress(OSError):
            # After the name, which may hold anything: state, parent, ...
            state, parent, *_ = (entry / "stat").read_text().rpartition(")")[2].split()
            if state not in "ZX":
                yield int(entry.name), int(parent)


def _command(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return (_PROC / str(pid) / "cmdline").read_bytes()
    return b""
