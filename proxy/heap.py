"""The garbage collector, told what stays.

A process with vLLM in it has a million objects that live as long as it does.
Every full collection would look at all of them, which stops every stream for
some 0.4 s; vLLM's own server and engine do the same as this.
"""

from __future__ import annotations

import gc


def settle() -> None:
    """What the start has built is not looked at again. Stops the process for that one look."""
    gc.collect()
    gc.freeze()
