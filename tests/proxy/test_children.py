"""No process below ours outlives it, whoever started it."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from proxy.children import apart, descendants

ROOT = Path(__file__).resolve().parents[2]
WAIT_FOR_EVER = "import signal; print(flush=True); signal.pause()"
PARENT = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {WAIT_FOR_EVER!r}], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
child.wait()
"""
GRANDPARENT = f"""
import subprocess, sys
from multiprocessing import resource_tracker
from proxy.children import kill_descendants

resource_tracker.ensure_running()
child = subprocess.Popen([sys.executable, "-c", {PARENT!r}], stdout=subprocess.PIPE)
grandchild = int(child.stdout.readline())
tracker = resource_tracker._resource_tracker._pid
print(child.pid, grandchild, tracker, flush=True)
sys.stdin.readline()
kill_descendants()
print("killed", flush=True)
sys.stdin.readline()
"""


def state(pid: int) -> str:
    """Linux's letter for what the process does, or nothing when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def ended(pid: int) -> bool:
    """Whether it ends in the next seconds: a signal takes its time on a busy machine."""
    deadline = time.monotonic() + 10
    while state(pid) not in ("Z", "X", "") and time.monotonic() < deadline:
        time.sleep(0.01)
    return state(pid) in ("Z", "X", "")


@pytest.fixture
def grandparent() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", GRANDPARENT],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_all_generations_are_killed_but_the_tracker(grandparent: subprocess.Popen[str]) -> None:
    with grandparent:
        assert grandparent.stdin is not None
        assert grandparent.stdout is not None
        child, grandchild, tracker = map(int, grandparent.stdout.readline().split())
        assert descendants(grandparent.pid) == {child, grandchild, tracker}
        assert {child, grandchild, tracker, grandparent.pid} <= descendants(os.getpid())
        grandparent.stdin.write("\n")
        grandparent.stdin.flush()
        assert grandparent.stdout.readline() == "killed\n"
        assert ended(child)
        assert ended(grandchild)
        assert state(tracker) in ("S", "R", "D")
        assert state(grandparent.pid) in ("S", "R", "D")
    assert descendants(2**30) == set()


def _group(results: Any) -> None:
    results.put(os.getpgrp())


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_ctrl_c_is_not_for_processes_that_are_started_apart(method: str) -> None:
    context = multiprocessing.get_context(method)
    results = context.SimpleQueue()

    def group_of_a_child() -> int:
        child = context.Process(target=_group, args=(results,))  # type: ignore[attr-defined]
        child.start()
        child.join(30)
        assert child.exitcode == 0
        group: int = results.get()
        return group

    assert group_of_a_child() == os.getpgrp()
    with apart():
        assert group_of_a_child() not in {os.getpgrp(), 0}
    assert group_of_a_child() == os.getpgrp()
