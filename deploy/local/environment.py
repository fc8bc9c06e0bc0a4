"""One virtual environment: made, checked, and remembered by a stamp.

The stamp names what was installed. It is taken away before pip starts and written
after all checks, so that an interrupted installation is done again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from engines import ENGINES, Engine, project_table
from layout import ROOT, SCRATCH
from progress import Command, Progress, SetupError

_OLDEST: Final = (3, 11)
_RECIPE: Final = 1  # raised when the same requirements are to be installed in another way


@dataclass(frozen=True)
class Contents:
    """What an environment shall hold: the gateway with these extras, and perhaps an engine."""

    extras: frozenset[str] = frozenset()
    engine: Engine | None = None

    def with_also(self, other: Contents) -> Contents:
        """Both, so that a later command takes nothing away from an earlier one."""
        return Contents(self.extras | other.extras, self.engine or other.engine)

    def key(self) -> str:
        """Changes whenever an installation of these contents would give something else."""
        project = project_table()
        parts = [
            _RECIPE,
            str(ROOT),
            sorted(self.extras),
            self.engine and asdict(self.engine),
            [project[name] for name in ("dependencies", "optional-dependencies", "scripts")],
        ]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


class Environment:
    """A virtual environment in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stamp = folder / "installed.json"

    @property
    def python(self) -> Path:
        """The environment's interpreter."""
        return self.program("python")

    def program(self, name: str) -> Path:
        """A command that was installed into the environment."""
        return self.folder / "bin" / name

    def works(self) -> bool:
        """Whether pip starts. It does not after half a creation, a move, or Python's removal."""
        command: Command = [self.program("pip"), "--version"]
        try:
            shown = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        except OSError:
            return False
        version = re.search(r"\(python (\d+)\.(\d+)\)", shown)
        return version is not None and (int(version[1]), int(version[2])) >= _OLDEST

    def holds(self, wanted: Contents) -> bool:
        """Whether everything wanted was installed, as the project file says now."""
        return self._read_stamp().get("key") == wanted.with_also(self.installed()).key()

    def installed(self) -> Contents:
        """What the last finished installation brought."""
        stamp = self._read_stamp()
        return Contents(frozenset(stamp.get("extras", ())), ENGINES.get(stamp.get("engine", "")))

    def create(self, progress: Progress) -> None:
        """Make the environment anew, in place of what is left of an older one."""
        used = self.folder.exists() and any(self.folder.iterdir())
        if used and not (self.folder / "pyvenv.cfg").exists():
            raise SetupError(f"{self.folder} is not a virtual environment; name another: VENV=...")
        progress.run([sys.executable, "-m", "venv", "--clear", self.folder], "Creating it")

    def pip(self, arguments: list[str], what: str, progress: Progress) -> None:
        """Run pip; it unpacks in a folder of ours, since /tmp is often too small for torch."""
        settings = {
            "PIP_NO_INPUT": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PYTHONUNBUFFERED": "1",
            "TMPDIR": str(SCRATCH),
        }
        with _scratch():
            progress.run([self.python, "-m", "pip", *arguments], what, {**os.environ, **settings})

    @contextmanager
    def being_filled(self, contents: Contents) -> Iterator[None]:
        """Around an installation: the stamp stands only when it went well to its end."""
        self._stamp.unlink(missing_ok=True)
        yield
        engine = contents.engine and contents.engine.name
        stamp = {"key": contents.key(), "extras": sorted(contents.extras), "engine": engine}
        self._stamp.write_text(json.dumps(stamp, indent=2) + "\n")

    def _read_stamp(self) -> dict[str, Any]:
        try:
            stamp: dict[str, Any] = json.loads(self._stamp.read_text())
        except (OSError, ValueError):
            return {}
        return stamp


@contextmanager
def _scratch() -> Iterator[None]:
    shutil.rmtree(SCRATCH, ignore_errors=True)
    SCRATCH.mkdir(parents=True)
    try:
        yield
    finally:
        shutil.rmtree(SCRATCH, ignore_errors=True)
