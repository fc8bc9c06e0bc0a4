"""A generate request: from the parsed body to checked values.

Two steps, because the prompt is counted in tokens between them (contract §1,
order of checks): `read_envelope` takes id and text, `read_parameters` the rest
in the order of contract §3. Types are strict; the tables are in `contract.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from translators.body import json_type, shown
from translators.contract import (
    DIALECT_TWINS,
    ID_PATTERN,
    MAX_WORD_LENGTH,
    MAX_WORDS,
    Contract,
    Kind,
    Parameter,
    Range,
)
from translators.errors import InvalidInput
from translators.media import MediaPart, Part, TextPart, read_parts

_ID: Final = re.compile(ID_PATTERN)


@dataclass(frozen=True, slots=True)
class Envelope:
    """Who asks and what: the part of a request that is checked first."""

    client_id: str | None
    text: str
    """All text, joined when it came in parts."""
    parameters: Any
    """The raw value under `parameters`; its type is checked when its turn comes."""
    top_level: Mapping[str, Any] | None
    """The whole body when the Triton dialect is on: its fields stand there."""
    parts: tuple[Part, ...] = ()
    """The list form of text_input; empty for the string form."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """The checked parameters. None means that the client did not say.

    `timeout` is in seconds. `temperature` 0.0 comes only from the Triton
    dialect and means greedy; `top_k` 0 only from the `server` contract and
    means off.
    """

    temperature: float | None
    top_k: int | None
    top_p: float | None
    do_sample: bool | None
    seed: int | None
    repetition_penalty: float | None
    priority: int
    max_new_tokens: int
    details: bool
    timeout: int
    stop_words: tuple[str, ...] = ()
    bad_words: tuple[str, ...] = ()
    accumulate: bool = False
    frequency_penalty: float = 0.0
    """Only from the TGI shape, as the next one."""
    logprobs: int | None = None


def read_id(document: Mapping[str, Any]) -> str | None:
    """The client's `id`, or None. InvalidInput unless it fits contract §2."""
    value = document.get("id")
    if value is None:
        return None
    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise InvalidInput(f'"id" must be a string that matches {ID_PATTERN}, got {shown(value)}')
    return value


def required_id(document: Mapping[str, Any]) -> str:
    """The client's `id` where there must be one (stopInfer)."""
    value = read_id(document)
    if value is None:
        raise InvalidInput('"id" must be the id of a live request, got nothing')
    return value


def usable_id(header: str | None) -> str | None:
    """The `req-id` header when it could be an id, else None (contract §2)."""
    return header if header is not None and _ID.fullmatch(header) else None


def read_envelope(
    document: Mapping[str, Any], contract: Contract, *, body_limit: int, dialect: bool
) -> Envelope:
    """Check id and text_input, in this order.

    `body_limit` (bytes) is the text limit of a contract that has none of its
    own. Raises InvalidInput with the field's name.
    """
    client_id = read_id(document)
    text, parts = _read_text_input(document.get("text_input"), dialect=dialect)
    least = 0 if any(isinstance(part, MediaPart) for part in parts) else 1
    _check_length(text, least, contract.text_limit or body_limit)
    return Envelope(
        client_id=client_id,
        text=text,
        parameters=document.get("parameters"),
        top_level=document if dialect else None,
        parts=parts,
    )


def _read_text_input(value: Any, *, dialect: bool) -> tuple[str, tuple[Part, ...]]:
    if dialect and isinstance(value, list) and len(value) == 1 and isinstance(value[0], str):
        value = value[0]
    if isinstance(value, str):
        return value, ()
    if not isinstance(value, list):
        got = "nothing" if value is None else json_type(value)
        raise InvalidInput(f'"text_input" must be a string or a list, got {got}')
    parts = read_parts(value)
    return "".join(part.text for part in parts if isinstance(part, TextPart)), parts


def _check_length(text: str, least: int, limit: int) -> None:
    units = utf16_units(text) if 2 * len(text) > limit else len(text)
    if not least <= units <= limit:
        raise InvalidInput(
            f'"text_input" must hold 1 to {limit} characters (UTF-16 code units), got {units}'
        )


def utf16_units(text: str) -> int:
    """The length of `text` in UTF-16 code units: 2 for a character beyond U+FFFF."""
    return len(text.encode("utf-16-le")) // 2


def read_parameters(
    envelope: Envelope, contract: Contract, *, is_recompute: bool = False
) -> Parameters:
    """Check every parameter in the order of contract §3; the first failure wins.

    `is_recompute` says whether the header `is-recompute: true` was sent. Raises
    InvalidInput with the name, the accepted range and what was got.
    """
    own = own_parameters(envelope.parameters)
    top = envelope.top_level
    skip_recompute = contract.recompute_header_needed and not is_recompute
    checked: dict[str, Any] = {}
    for row in contract.parameters:
        if row.recompute_only and skip_recompute:
            continue
        value = own.get(row.name)
        if value is not None:
            checked[row.name] = checked_value(row.name, row.kind, row.range, value)
        elif top is not None:
            checked[row.name] = _dialect_value(row, own, top)
    return _collect(contract, checked, top)


def own_parameters(value: Any) -> Mapping[str, Any]:
    """The object under `parameters`, empty when absent; InvalidInput for anything else."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidInput(f'"parameters" must be an object, got {json_type(value)}')
    return value


def _dialect_value(row: Parameter, own: Mapping[str, Any], top: Mapping[str, Any]) -> Any:
    """The top-level twin of an absent parameter; `max_tokens` also stands under `parameters`."""
    field = DIALECT_TWINS.get(row.name)
    if field is None:
        return None
    value = own.get(field.name) if field.name != row.name else None
    if value is None:
        value = top.get(field.name)
    if value is None:
        return None
    value = checked_value(field.name, row.kind, field.range, value)
    return None if field.zero_is_absent and value == 0 else value


def checked_value(name: str, kind: Kind, bounds: Range | None, value: Any) -> Any:
    """`value` when it has the type and lies in the range; InvalidInput otherwise."""
    if kind is Kind.UINT64_LIST:
        fits = isinstance(value, list) and all(_fits(Kind.UINT64, bounds, item) for item in value)
    else:
        fits = _fits(kind, bounds, value)
    if not fits:
        within = f" in {bounds}" if bounds is not None else ""
        raise InvalidInput(f'parameter "{name}" must be {kind.value}{within}, got {shown(value)}')
    return float(value) if kind is Kind.FLOAT else value


def _fits(kind: Kind, bounds: Range | None, value: Any) -> bool:
    if kind is Kind.BOOL:
        return isinstance(value, bool)
    accepted = (int, float) if kind is Kind.FLOAT else int
    if isinstance(value, bool) or not isinstance(value, accepted):
        return False
    return bounds is None or bounds.holds(value)


def _collect(
    contract: Contract, checked: Mapping[str, Any], top: Mapping[str, Any] | None
) -> Parameters:
    def value_of(name: str) -> Any:
        value = checked.get(name)
        return contract.parameter(name).default if value is None else value

    top = top or {}
    return Parameters(
        temperature=checked.get("temperature"),
        top_k=checked.get("top_k"),
        top_p=checked.get("top_p"),
        do_sample=checked.get("do_sample"),
        seed=checked.get("seed"),
        repetition_penalty=checked.get("repetition_penalty"),
        priority=value_of("priority"),
        max_new_tokens=value_of("max_new_tokens"),
        details=value_of("details"),
        timeout=value_of("timeout"),
        stop_words=read_words("stop_words", top),
        bad_words=read_words("bad_words", top),
        accumulate=_flag("accumulate_tokens", top),
    )


def read_words(name: str, top: Mapping[str, Any]) -> tuple[str, ...]:
    """Stop words and the like, without the empty ones; InvalidInput unless they are strings."""
    value = top.get(name)
    if value is None:
        return ()
    words = [value] if isinstance(value, str) else value
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise InvalidInput(f'"{name}" must be a string or a list of strings, got {shown(value)}')
    if len(words) > MAX_WORDS:
        raise InvalidInput(f'"{name}" must hold at most {MAX_WORDS} strings, got {len(words)}')
    longest = max(map(len, words), default=0)
    if longest > MAX_WORD_LENGTH:
        raise InvalidInput(
            f'"{name}" must hold strings of at most {MAX_WORD_LENGTH} characters, got {longest}'
        )
    return tuple(word for word in words if word)


def _flag(name: str, top: Mapping[str, Any]) -> bool:
    value = top.get(name)
    return False if value is None else bool(checked_value(name, Kind.BOOL, None, value))
