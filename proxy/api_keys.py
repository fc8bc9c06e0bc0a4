"""API keys: names and SHA-256 hashes, never the keys themselves.

One key a line (or between commas, in an environment variable):

    NAME sha256:HEX [rate=REQUESTS_PER_MINUTE] [burst=N] [concurrency=N]

A name may stand on several lines, so that an old and a new key both work while
clients change over; its limits are then shared and must be the same.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from proxy.crew import ALONE, Worker
from proxy.limits import Allowance, Limits

_NAME: Final = re.compile(r"[\w.-]{1,64}")
_HASH: Final = re.compile(r"sha256:([0-9a-fA-F]{64})")
_OPTIONS: Final[dict[str, Callable[[str], float]]] = {
    "rate": float,
    "burst": int,
    "concurrency": int,
}


class KeysError(ValueError):
    """Keys that cannot be read; the message names the line, never its content."""


@dataclass(frozen=True, slots=True)
class Key:
    """One key that is accepted."""

    name: str
    digest: bytes
    limits: Limits


class KeyRing:
    """The keys of one kind of routes. Replaced as a whole when they change."""

    def __init__(
        self,
        keys: list[Key],
        now: float,
        previous: KeyRing | None = None,
        worker: Worker = ALONE,
    ) -> None:
        self._keys = keys
        kept = {} if previous is None else previous.allowances
        self.allowances: dict[str, Allowance] = {
            key.name: kept[key.name]
            if key.name in kept and kept[key.name].limits == key.limits
            else Allowance(key.limits, now, worker)
            for key in keys
        }

    def find(self, secret: str) -> Key | None:
        """The key with this secret; takes the same time whichever matches, or none."""
        digest = hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()
        found = None
        for key in self._keys:
            if hmac.compare_digest(key.digest, digest):
                found = key
        return found

    def allowance(self, key: Key) -> Allowance:
        return self.allowances[key.name]


def read_keys(file: Path | None, inline: str | None) -> list[Key]:
    """The keys of a file and of a setting together. KeysError when any is wrong."""
    try:
        text = "" if file is None else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise KeysError(f"cannot read the keys file: {type(error).__name__}") from None
    lines = text.splitlines() + (inline or "").replace(",", "\n").splitlines()
    keys = list(_parse(lines))
    limits = {key.name: key.limits for key in keys}
    for key in keys:
        if key.limits != limits[key.name]:
            raise KeysError(f"the lines of key {key.name} differ in their limits")
    return keys


def _parse(lines: list[str]) -> Iterator[Key]:
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if words:
            yield _key(number, words)


def _key(number: int, words: list[str]) -> Key:
    hashed = _HASH.fullmatch(words[1]) if len(words) > 1 else None
    if hashed is None or not _NAME.fullmatch(words[0]):
        raise KeysError(f"key {number} is not of the form NAME sha256:HEX [rate=N] [...]")
    options: dict[str, Any] = {}
    for word in words[2:]:
        name, _, value = word.partition("=")
        options[name] = _option(number, name, value)
    return Key(words[0], bytes.fromhex(hashed[1]), Limits(**options))


def _option(number: int, name: str, value: str) -> float:
    convert = _OPTIONS.get(name)
    if convert is None:
        raise KeysError(f"key {number} has the unknown option {name}")
    try:
        number_value = convert(value)
    except ValueError:
        number_value = 0
    if not 0 < number_value < float("inf"):
        raise KeysError(f"key {number}: {name} must be a number above 0")
    return number_value
