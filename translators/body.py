"""Body bytes to JSON, as strictly as contract §2 asks.

orjson refuses what must be refused: invalid UTF-8, lone surrogates, NaN,
trailing garbage, numbers that overflow, absurd nesting. Integers beyond 64 bits
come back as floats, which no integer field takes.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable
from itertools import chain
from typing import Any, Final

import msgspec
import orjson

from translators.contract import MAX_NESTING, Contract
from translators.errors import InvalidInput

_SHOWN: Final = 64
"""Characters of a refused value that an error text shows."""
_BOM: Final = b"\xef\xbb\xbf"
_BIG: Final = 1024 * 1024
"""Bytes of a body from which on it may hold containers by the million."""

_FEW: Final = 1000
"""Values of a body that may be looked at one by one."""

Container = dict[str, Any] | list[Any]


def parse_object(body: bytes, contract: Contract) -> dict[str, Any]:
    """The JSON object in `body`; InvalidInput for anything else."""
    if not body:
        raise InvalidInput("the body is empty; a JSON object was expected")
    opens_many = _opens_many(body)
    try:
        document = _loads(body.removeprefix(_BOM), mostly_text=not opens_many)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(
            f"the body is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        ) from None
    if not isinstance(document, dict):
        raise InvalidInput(f"the body must be a JSON object, got {json_type(document)}")
    if opens_many:
        _limit_nesting(document, contract)
    return document


def json_type(value: Any) -> str:
    """The JSON name of a parsed value's type, for error texts."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "an array"
        case _:
            return "an object"


def shown(value: Any) -> str:
    """A refused value as JSON, cut short, for an error text."""
    text = orjson.dumps(value).decode()
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def _loads(body: bytes, *, mostly_text: bool) -> Any:
    """orjson's parser, without the garbage collector looking on.

    It would look through all new containers again and again, ten times as long
    as parsing takes, and find nothing: JSON has no cycles.
    """
    if len(body) < _BIG:
        return orjson.loads(body)
    enabled = gc.isenabled()
    gc.disable()
    try:
        document = _mostly_text(body) if mostly_text else None
        return orjson.loads(body) if document is None else document
    finally:
        if enabled:
            gc.enable()


def _mostly_text(body: bytes) -> Any:
    """What orjson makes of a body of few values, in half the time; None for any other.

    msgspec copies a long string once less, and nothing else runs meanwhile.
    What it refuses orjson refuses as well, and says why.
    """
    try:
        document = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    values: list[Any] = []
    level = [document]
    while level:
        values += level
        if len(values) > _FEW:
            return None
        level = _members(level)
    # Beyond 64 bits orjson makes a float of an integer.
    alike = all(type(value) is not int or -(2**63) <= value < 2**64 for value in values)
    return document if alike else None


def _opens_many(body: bytes) -> bool:
    """Whether it could nest too deep: it opens that many containers. The usual body opens a few.

    Looking for the next one is ten times as fast as counting, in a text of megabytes.
    """
    opened = 0
    for bracket in (b"{", b"["):
        at = body.find(bracket)
        while at >= 0 and opened <= MAX_NESTING:
            opened += 1
            at = body.find(bracket, at + 1)
    return opened > MAX_NESTING


def _limit_nesting(document: dict[str, Any], contract: Contract) -> None:
    """Walk level by level; what lies too deep is refused or dropped (contract §8)."""
    level: list[Container] = [document]
    for _ in range(MAX_NESTING - 1):
        level = _children(level)
    if not _children(level):
        return
    if not contract.prune_deep:
        raise InvalidInput(f"the body nests more than {MAX_NESTING} containers")
    for node in level:
        _drop_containers(node)


def _children(level: list[Container]) -> list[Container]:
    """All containers one level deeper."""
    return [value for value in _members(level) if type(value) is dict or type(value) is list]


def _members(level: Iterable[Any]) -> list[Any]:
    """All values in the containers; without a call per node, as there may be millions."""
    lists = [node for node in level if type(node) is list]
    members = [node.values() for node in level if type(node) is dict]
    return [*chain.from_iterable(lists), *chain.from_iterable(members)]


def _drop_containers(node: Container) -> None:
    if isinstance(node, list):
        node[:] = [value for value in node if not isinstance(value, (dict, list))]
        return
    for key in [key for key, value in node.items() if isinstance(value, (dict, list))]:
        del node[key]
