"""Body bytes to JSON, as strictly as contract §2 asks.

orjson refuses what must be refused: invalid UTF-8, lone surrogates, NaN,
trailing garbage, numbers that overflow, absurd nesting. Integers beyond 64 bits
come back as floats, which no integer field takes.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

from translators.contract import MAX_NESTING, Contract
from translators.errors import InvalidInput

_SHOWN: Final = 64
"""Characters of a refused value that an error text shows."""
_BOM: Final = b"\xef\xbb\xbf"


def parse_object(body: bytes, contract: Contract) -> dict[str, Any]:
    """The JSON object in `body`; InvalidInput for anything else."""
    if not body:
        raise InvalidInput("the body is empty; a JSON object was expected")
    try:
        document = orjson.loads(body.removeprefix(_BOM))
    except orjson.JSONDecodeError as error:
        raise InvalidInput(
            f"the body is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        ) from None
    if not isinstance(document, dict):
        raise InvalidInput(f"the body must be a JSON object, got {json_type(document)}")
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


def _limit_nesting(document: dict[str, Any], contract: Contract) -> None:
    """Walk level by level; what lies too deep is refused or dropped (contract §8)."""
    level: list[dict[str, Any] | list[Any]] = [document]
    for _ in range(MAX_NESTING - 1):
        level = [child for node in level for child in _children(node)]
        if not level:
            return
    for node in level:
        if not _children(node):
            continue
        if not contract.prune_deep:
            raise InvalidInput(f"the body nests more than {MAX_NESTING} containers")
        _drop_containers(node)


def _children(node: dict[str, Any] | list[Any]) -> list[Any]:
    values = node.values() if isinstance(node, dict) else node
    return [value for value in values if isinstance(value, dict | list)]


def _drop_containers(node: dict[str, Any] | list[Any]) -> None:
    if isinstance(node, list):
        node[:] = [value for value in node if not isinstance(value, dict | list)]
        return
    for key in [key for key, value in node.items() if isinstance(value, dict | list)]:
        del node[key]
