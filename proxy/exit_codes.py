"""How a process says why it ended (docs/operations.md)."""

from __future__ import annotations

from typing import Final

EXIT_OK: Final = 0
EXIT_ENGINE: Final = 1
"""The engine died, or did not start."""
EXIT_USAGE: Final = 2
EXIT_BIND: Final = 3
"""The address is taken or wrong."""
EXIT_WORKERS: Final = 4
"""Workers died again and again, or did not stop."""
