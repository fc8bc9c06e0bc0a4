"""Where the scripts of this folder put things, and the one lock around doing so."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
CACHE: Final = ROOT / ".cache"
LOGS: Final = CACHE / "logs"
MODELS: Final = CACHE / "models"
SCRATCH: Final = CACHE / "scratch"
SCRIPTS: Final = Path(__file__).resolve().parent


def venv_folder() -> Path:
    """The environment's folder: $VENV, or .venv in the repository."""
    return (ROOT / os.environ.get("VENV", ".venv")).absolute()


@contextmanager
def alone() -> Iterator[None]:
    """Hold the set-up lock: two `make` at once take turns instead of mixing files."""
    CACHE.mkdir(exist_ok=True)
    with (CACHE / "setup.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("Another set-up is at work in this folder; waiting for it.", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
