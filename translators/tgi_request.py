"""A request in the shape of Hugging Face's text-generation-inference (TGI).

`inputs` and `parameters`, checked by the same rows as MindIE's where the names
are the same. As in TGI a request samples when `do_sample` is true or one of the
sampling parameters is there; what it leaves out comes from the model, as on
every route.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from translators.body import json_type, shown
from translators.contract import INT32_MAX, Contract, Kind, Parameter, Range
from translators.errors import InvalidInput
from translators.request import (
    Parameters,
    checked_value,
    own_parameters,
    read_words,
    utf16_units,
)

MAX_TOP_TOKENS: Final = 5
"""Of `top_n_tokens`: TGI's own default limit."""
_MINDIES: Final = (
    "temperature",
    "repetition_penalty",
    "top_k",
    "top_p",
    "typical_p",
    "do_sample",
    "max_new_tokens",
    "watermark",
    "details",
    "seed",
)
_SAMPLING: Final = ("temperature", "top_k", "top_p", "typical_p")
_POSITIVE: Final = Range(0, INT32_MAX, open_low=True)
TGIS_OWN: Final = (
    Parameter("best_of", Kind.INT, Range(1, 1), 1, "one sequence is all there is"),
    Parameter(
        "frequency_penalty", Kind.FLOAT, Range(-2.0, 2.0), 0.0, "above 0 discourages repetition"
    ),
    Parameter("return_full_text", Kind.BOOL, None, False, "the prompt before the generated text"),
    Parameter("truncate", Kind.INT, _POSITIVE, None, "only this many tokens of the prompt's end"),
    Parameter(
        "decoder_input_details",
        Kind.BOOL,
        None,
        False,
        "the prompt's tokens in `details`, without log probabilities; not for streams",
    ),
    Parameter(
        "top_n_tokens", Kind.INT, Range(0, MAX_TOP_TOKENS), 0, "the likeliest tokens at each place"
    ),
)
UNSUPPORTED: Final = ("grammar", "adapter_id")
"""They would change the text and cannot be honoured: refused, never ignored."""


def tgi_parameters(contract: Contract) -> tuple[Parameter, ...]:
    """The rows of this shape: MindIE's of the same name, then TGI's own."""
    return (*(contract.parameter(name) for name in _MINDIES), *TGIS_OWN)


@dataclass(frozen=True, slots=True)
class TgiRequest:
    """What is asked; the parameters are checked later, when the prompt is counted."""

    inputs: str
    stream: bool
    parameters: Any
    """The raw value."""


@dataclass(frozen=True, slots=True)
class TgiParameters:
    """The checked parameters."""

    common: Parameters
    """What every route has, for the engine and the clocks."""
    details: bool
    """The end's details, and of a whole answer also its tokens."""
    prefill: bool
    """The prompt's tokens as well."""
    return_full_text: bool
    truncate: int | None
    stop: tuple[str, ...]


def read_tgi(
    document: Mapping[str, Any], contract: Contract, *, stream: bool | None, body_limit: int
) -> TgiRequest:
    """Check `inputs`, and where `stream` is None the client's own `stream`.

    `body_limit` (bytes) is the text limit of a contract that has none.
    """
    return TgiRequest(
        inputs=_inputs(document.get("inputs"), contract.text_limit or body_limit),
        stream=_stream(document) if stream is None else stream,
        parameters=document.get("parameters"),
    )


def _inputs(value: Any, limit: int) -> str:
    if not isinstance(value, str):
        got = "nothing" if value is None else json_type(value)
        raise InvalidInput(f'"inputs" must be a string, got {got}')
    units = utf16_units(value)
    if not 0 < units <= limit:
        raise InvalidInput(
            f'"inputs" must hold 1 to {limit} characters (UTF-16 code units), got {units}'
        )
    return value


def _stream(document: Mapping[str, Any]) -> bool:
    value = document.get("stream")
    return False if value is None else bool(checked_value("stream", Kind.BOOL, None, value))


def read_tgi_parameters(raw: Any, contract: Contract, *, stream: bool) -> TgiParameters:
    """Check every parameter. InvalidInput with the name, the range and what was got."""
    own = own_parameters(raw)
    for name in UNSUPPORTED:
        if own.get(name) is not None:
            raise InvalidInput(f'parameter "{name}" is not supported, got {shown(own[name])}')
    values = {row.name: _value(row, own) for row in tgi_parameters(contract)}
    if stream and values["decoder_input_details"]:
        raise InvalidInput('parameter "decoder_input_details" must not be true for a stream')
    details = bool(values["details"] or values["decoder_input_details"])
    return TgiParameters(
        common=_common(values, contract, wants_tokens=stream or details),
        details=details,
        prefill=values["decoder_input_details"] is True,
        return_full_text=values["return_full_text"] is True,
        truncate=values["truncate"],
        stop=read_words("stop", own),
    )


def _value(row: Parameter, own: Mapping[str, Any]) -> Any:
    value = own.get(row.name)
    return None if value is None else checked_value(row.name, row.kind, row.range, value)


def _common(values: Mapping[str, Any], contract: Contract, *, wants_tokens: bool) -> Parameters:
    def default(name: str) -> Any:
        return contract.parameter(name).default

    sampling = values["do_sample"] or any(values[name] is not None for name in _SAMPLING)
    return Parameters(
        temperature=values["temperature"],
        top_k=values["top_k"],
        top_p=values["top_p"],
        do_sample=bool(sampling),
        seed=values["seed"],
        repetition_penalty=values["repetition_penalty"],
        priority=default("priority"),
        max_new_tokens=values["max_new_tokens"] or default("max_new_tokens"),
        details=bool(values["details"]),
        timeout=default("timeout"),
        frequency_penalty=values["frequency_penalty"] or 0.0,
        # Without a stream and without details nobody sees a single token.
        logprobs=(values["top_n_tokens"] or 0) if wants_tokens else None,
    )
