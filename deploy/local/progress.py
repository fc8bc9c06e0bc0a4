"""What a person sees while the scripts of this folder work.

Steps are numbered. Each command writes to a log file of its own, and while it
runs, a line says for how long and what it is doing.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

Command: TypeAlias = Sequence[str | Path]

_INDENT: Final = "      "
_BEAT_ON_TERMINAL: Final = 1.0
_BEAT_IN_LOG: Final = 15.0
_TAIL_BYTES: Final = 8192
_LINES_OF_A_FAILURE: Final = 15
_WIDTH: Final = 66
_DOING: Final = re.compile(
    r"^ *(Checking|Collecting|Downloading|Installing|Preparing|Processing|Reading|Writing) "
    r"(collected packages|\S+)(.*)$"
)
_SIZE: Final = re.compile(r"\([\d.]+ [kMG]B\)")


class SetupError(Exception):
    """Set-up cannot go on; the text tells the person why and what to do."""


class Progress:
    """Numbered steps on standard output, and the commands that run in them."""

    def __init__(self, steps: int, logs: Path) -> None:
        self._steps = steps
        self._step = 0
        self._logs = logs
        self._terminal = sys.stdout.isatty()

    def step(self, title: str) -> None:
        """Begin the next step."""
        self._step += 1
        print(f"[{self._step}/{self._steps}] {title}", flush=True)

    def note(self, text: str) -> None:
        """Say something about the present step."""
        print(_INDENT + text, flush=True)

    def run(
        self,
        command: Command,
        what: str,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Run a command to its end; SetupError with the end of its log if it fails."""
        log = self._new_log(what)
        started = time.monotonic()
        with log.open("wb") as sink:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                env=environment,
            )
            try:
                self._watch(process, lambda: self._beat(what, started, log))
            finally:
                _end(process)
        self._clear()
        if process.returncode != 0:
            raise SetupError(_failure(what, process.returncode, log))
        self.note(f"{what}: done in {duration(time.monotonic() - started)}")

    def _new_log(self, what: str) -> Path:
        self._logs.mkdir(parents=True, exist_ok=True)
        return self._logs / (re.sub(r"\W+", "-", what.lower()).strip("-") + ".log")

    def _watch(self, process: subprocess.Popen[bytes], beat: Callable[[], None]) -> None:
        interval = _BEAT_ON_TERMINAL if self._terminal else _BEAT_IN_LOG
        while True:
            try:
                process.wait(timeout=interval)
            except subprocess.TimeoutExpired:
                beat()
            else:
                return

    def _beat(self, what: str, started: float, log: Path) -> None:
        line = f"{_INDENT}{what}: {duration(time.monotonic() - started)}  {_doing(log)}"
        if self._terminal:
            print(f"\r\033[K{line}", end="", flush=True)
        else:
            print(line.rstrip(), flush=True)

    def _clear(self) -> None:
        if self._terminal:
            print("\r\033[K", end="", flush=True)


def duration(seconds: float) -> str:
    """Seconds as a person says them: `7 s`, `2 min 05 s`."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def _end(process: subprocess.Popen[bytes]) -> None:
    """Leave no command behind when the person has had enough."""
    if process.poll() is None:
        process.terminate()
        process.wait()


def _tail(log: Path) -> list[str]:
    with log.open("rb") as file:
        file.seek(0, 2)
        file.seek(max(0, file.tell() - _TAIL_BYTES))
        return file.read().decode(errors="replace").replace("\r", "\n").splitlines()


def _doing(log: Path) -> str:
    """The newest line of the log that says what goes on, without its paths and addresses."""
    for line in reversed(_tail(log)):
        if match := _DOING.match(line):
            verb, thing, rest = match.groups()
            size = _SIZE.search(rest)
            words = [verb, thing.rsplit("/", 1)[-1], size.group() if size else ""]
            return " ".join(words).strip()[:_WIDTH]
    return ""


def _failure(what: str, code: int, log: Path) -> str:
    lines = [line for line in _tail(log) if line.strip()]
    shown = "\n".join(f"    {line}" for line in lines[-_LINES_OF_A_FAILURE:])
    return f"{what} failed (exit code {code}). The end of {log}:\n{shown}"
