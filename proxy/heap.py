"""The garbage collector, told what stays.

A process with vLLM in it has a million objects that live as long as it does.
Every full collection would look at all of them, which stops every stream for
some 0.4 s; vLLM's own server and engine do the same as this.
"""

from __future__ import annotations

import gc
from typing import Final

_YOUNG: Final = 10_000
"""Objects made between two looks at the young ones. Each token makes some that go at once, and
Python's own figure of 700 has them looked at while they are in use."""


def settle() -> None:
    """What the start has built is not looked at again. Stops the process for that one look."""
    gc.collect()
    gc.freeze()
    _, middle, old = gc.get_threshold()
    gc.set_threshold(_YOUNG, middle, old)
