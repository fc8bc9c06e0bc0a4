"""The process's log: lines for people, or JSON for machines.

Control characters are escaped, so that nothing a client sends can look like a
line of ours, and a traceback that may hold a client's text is shown without its
message (`PRIVATE`).
"""

from __future__ import annotations

import datetime
import logging
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final, Literal

import orjson

PRIVATE: Final = {"private": True}
"""As `extra` of a log call: the exception's own words stay out, they could be a client's."""
LogFormat = Literal["console", "json"]
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
ExcInfo = tuple[type[BaseException], BaseException, TracebackType | None]


def configure(level: str, style: LogFormat) -> None:
    """Send everything to standard error in this style."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if style == "json" else ConsoleFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


@contextmanager
def kept() -> Iterator[None]:
    """Afterwards the log is as it was, whatever an import inside has made of it.

    A library that vLLM imports for its OpenAI API sets the level of all logs to ERROR.
    """
    root = logging.getLogger()
    level, handlers = root.level, [(handler, handler.level) for handler in root.handlers]
    try:
        yield
    finally:
        root.setLevel(level)
        root.handlers[:] = [handler for handler, _ in handlers]
        for handler, own in handlers:
            handler.setLevel(own)


def escaped(text: str) -> str:
    """`text` on one line, whatever it holds."""
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


class ConsoleFormatter(logging.Formatter):
    """One line per record, fields as `name=value`; a traceback below it, set off by `|`."""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {name}={_shown(value)}" for name, value in _fields(record).items())
        line = f"{_time(record)} {record.levelname} {record.name}: {record.getMessage()}{fields}"
        trace = "".join(f"\n  | {escaped(each)}" for each in _trace(record))
        return escaped(line) + trace


class JsonFormatter(logging.Formatter):
    """One JSON object per record."""

    def format(self, record: logging.LogRecord) -> str:
        document: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        trace = _trace(record)
        if trace:
            document["traceback"] = trace
        return orjson.dumps(document, default=str).decode()


def _time(record: logging.LogRecord) -> str:
    at = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    return getattr(record, "fields", {})


def _shown(value: Any) -> str:
    text = str(value)
    return orjson.dumps(text).decode() if " " in text or '"' in text else text


def _trace(record: logging.LogRecord) -> list[str]:
    if not record.exc_info or record.exc_info[0] is None:
        return []
    kind, error, frames = record.exc_info
    if not getattr(record, "private", False):
        return "".join(traceback.format_exception(kind, error, frames)).rstrip().split("\n")
    stack = "".join(traceback.format_tb(frames)).rstrip().split("\n")
    return [*stack, kind.__name__]
