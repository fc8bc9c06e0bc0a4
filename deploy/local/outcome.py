"""How the scripts of this folder end: a sentence for the person, a code for the shell."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import Final

from progress import SetupError

_FAILED: Final = 1
_INTERRUPTED: Final = 130


def reported(main: Callable[[], None]) -> int:
    """Run `main`; say what went wrong instead of showing a traceback."""
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        main()
    except SetupError as error:
        print(f"\nerror: {error}", file=sys.stderr)
        return _FAILED
    except KeyboardInterrupt:
        print("\nInterrupted. The same command goes on from here.", file=sys.stderr)
        return _INTERRUPTED
    return 0


def _interrupt(signum: int, frame: FrameType | None) -> None:
    """SIGTERM ends a running pip as Ctrl-C does, so that none is left behind."""
    raise KeyboardInterrupt
