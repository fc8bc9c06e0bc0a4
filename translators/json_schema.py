"""JSON Schemas (2020-12) from what the code has already: rows of parameters, and real answers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

from translators.contract import UINT64_MAX, Kind, Parameter, Range

Schema = dict[str, Any]

_KINDS: Final[dict[Kind, Schema]] = {
    Kind.FLOAT: {"type": "number"},
    Kind.INT32: {"type": "integer", "format": "int32"},
    Kind.INT: {"type": "integer"},
    Kind.UINT64: {"type": "integer", "format": "uint64", "maximum": UINT64_MAX},
    Kind.BOOL: {"type": "boolean"},
    Kind.UINT64_LIST: {"type": "array"},
}
_TYPES: Final[tuple[tuple[type, str], ...]] = (
    (bool, "boolean"),
    (int, "integer"),
    (float, "number"),
    (str, "string"),
    (type(None), "null"),
)


def of_parameters(rows: Iterable[Parameter]) -> Schema:
    """The object of these parameters. Each may be null, which is absent."""
    return {
        "type": "object",
        "description": "Unknown keys are ignored; null is absent.",
        "properties": {row.name: of_parameter(row) for row in rows},
    }


def of_parameter(row: Parameter) -> Schema:
    """One row: its type or null, its range, its default."""
    schema = of_kind(row.kind, row.range)
    described = nullable(schema) | {"description": row.effect}
    return described if row.default is None else described | {"default": row.default}


def of_kind(kind: Kind, bounds: Range | None) -> Schema:
    """A value of this kind within these bounds."""
    limits = {} if bounds is None else of_range(bounds)
    if kind is Kind.UINT64_LIST:
        return _KINDS[kind] | {"items": _KINDS[Kind.UINT64] | limits}
    return _KINDS[kind] | limits


def of_range(bounds: Range) -> Schema:
    """The bounds that are finite."""
    limits: Schema = {}
    if not math.isinf(bounds.low):
        limits["exclusiveMinimum" if bounds.open_low else "minimum"] = bounds.low
    if not math.isinf(bounds.high):
        limits["maximum"] = bounds.high
    return limits


def nullable(schema: Schema) -> Schema:
    """The same, or null."""
    return schema | {"type": [schema["type"], "null"]}


def of_answers(*answers: Any) -> Schema:
    """What these JSON values have in common: keys in all of them are required, no others are there.

    An example of every case has to be among them: what is null in one and a
    number in another, a key that is only sometimes there.
    """
    objects = [answer for answer in answers if isinstance(answer, dict)]
    lists = [answer for answer in answers if isinstance(answer, list)]
    plain = [answer for answer in answers if not isinstance(answer, dict | list)]
    shapes: list[Schema] = []
    if objects:
        shapes.append(_of_objects(objects))
    if lists:
        shapes.append(_of_lists(lists))
    if plain:
        shapes.append({"type": _type_names(plain)})
    return shapes[0] if len(shapes) == 1 else {"anyOf": shapes}


def _of_lists(answers: Iterable[list[Any]]) -> Schema:
    items = [item for answer in answers for item in answer]
    return {"type": "array", "items": of_answers(*items)} if items else {"type": "array"}


def _of_objects(answers: Iterable[Mapping[str, Any]]) -> Schema:
    answers = list(answers)
    names = list(dict.fromkeys(name for answer in answers for name in answer))
    return {
        "type": "object",
        "properties": {
            name: of_answers(*(answer[name] for answer in answers if name in answer))
            for name in names
        },
        "required": [name for name in names if all(name in answer for answer in answers)],
        "additionalProperties": False,
    }


def _type_names(values: Iterable[Any]) -> str | list[str]:
    names = {_type_name(value) for value in values}
    if "number" in names:
        names.discard("integer")
    return sorted(names) if len(names) > 1 else names.pop()


def _type_name(value: Any) -> str:
    return next(name for kind, name in _TYPES if isinstance(value, kind))
