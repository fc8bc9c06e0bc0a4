"""The garbage collector after the start, in a process of its own."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import gc
from proxy.heap import settle

class Node:
    pass

kept = [Node() for _ in range(1000)]
lost = Node()
lost.itself = lost
del lost
settle()
print(gc.get_freeze_count() > 1000, gc.isenabled())
print(sum(isinstance(each, Node) for each in gc.get_objects()))
"""


def test_what_there_is_is_frozen_and_what_comes_is_collected() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], check=True, capture_output=True, text=True
    )
    assert done.stdout.split() == ["True", "True", "0"]
