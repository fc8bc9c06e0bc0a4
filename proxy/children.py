"""The processes below this one: they do not get a terminal's Ctrl-C, and do not outlive it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from multiprocessing import util
from pathlib import Path
from typing import Any, Final

_PROC: Final = Path("/proc")
_TRACKER: Final = b"multiprocessing.resource_tracker"
"""It ends by itself, after it has freed what the others held."""
_ROUNDS: Final = 5
"""Looks for processes that were started while the others were killed."""


_apart = False
"""Whether a process that is forked now leaves this one's process group."""


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """Processes that multiprocessing starts within get a process group of their own.

    A terminal sends Ctrl-C to the whole group in front. vLLM's processes would end
    at once, and the streams that this process wants to finish with them.
    """
    global _apart  # what a forked child looks at
    spawn = util.spawnv_passfds
    _apart, util.spawnv_passfds = True, _spawn_apart
    try:
        yield
    finally:
        _apart, util.spawnv_passfds = False, spawn


def _spawn_apart(path: bytes, args: Sequence[Any], passfds: Sequence[int]) -> int:
    """As multiprocessing's own function, but for the group."""
    process = subprocess.Popen(  # noqa: S603  # multiprocessing's own words
        args, executable=path, pass_fds=passfds, process_group=0
    )
    # multiprocessing waits for it by its id; this object must not.
    process.returncode = 0
    return process.pid


def _leave_the_group() -> None:
    if _apart:
        os.setpgid(0, 0)


os.register_at_fork(after_in_child=_leave_the_group)


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
