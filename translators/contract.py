"""The one table of the contract: parameters, ranges, defaults, differences.

Validator, documentation, OpenAPI and tests all read these rows. Where the API
page (`documented`) and MindIE-LLM 3.0.0 (`server`) disagree, the two values
stand side by side in a `Differs`; nothing else in the code asks which contract
is in force. Source: contract §3 and §8.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, Final, Literal, NamedTuple

INT32_MAX: Final = 2**31 - 1
UINT64_MAX: Final = 2**64 - 1
FLOAT32_MAX: Final = 3.4028235e38

ID_PATTERN: Final = r"[A-Za-z0-9_-]{1,256}"
MODEL_PATTERN: Final = r"[\w.-]+"
MAX_NESTING: Final = 11
"""Containers inside each other, the body itself included."""
MAX_PROMPT_TOKENS: Final = 1_048_576
PAGE_TEXT_LIMIT: Final = 4 * 1024 * 1024
"""UTF-16 code units of `text_input` that the page allows."""
DEFAULT_TOP_K: Final = 1000
"""top_k of a sampling request when neither the client nor the model says one."""

ContractName = Literal["documented", "server"]


class Kind(Enum):
    """JSON types, strict: `1.0` is no integer, `true` is no number."""

    FLOAT = "float"
    INT32 = "int32"
    INT = "int"
    UINT64 = "uint64"
    BOOL = "bool"
    UINT64_LIST = "list of uint64"


class Range(NamedTuple):
    """An interval; `open_low` excludes `low` itself."""

    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False

    def holds(self, value: float) -> bool:
        """Whether `value` lies inside, compared in double precision or exactly."""
        above = value > self.low if self.open_low else value >= self.low
        return above and value <= self.high

    def __str__(self) -> str:
        left = "(" if self.open_low or math.isinf(self.low) else "["
        right = ")" if math.isinf(self.high) else "]"
        return f"{left}{_number(self.low)}, {_number(self.high)}{right}"


def _number(value: float) -> str:
    if isinstance(value, int):
        return str(value)
    return f"{value:.8g}" if value not in (0.0, 1.0) else f"{value:.1f}"


class Differs(NamedTuple):
    """One fact in both contracts, side by side."""

    documented: Any
    server: Any


class Parameter(NamedTuple):
    """One row of contract §3, as one contract sees it."""

    name: str
    kind: Kind
    range: Range | None
    default: Any
    effect: str
    recompute_only: bool = False


class _Row(NamedTuple):
    """One row of contract §3, as both contracts see it."""

    name: str
    kind: Kind
    range: Range | Differs | None
    default: Any
    effect: str
    recompute_only: bool = False


_POSITIVE_INT = Range(0, INT32_MAX, open_low=True)
_ANY_UINT64 = Range(0, UINT64_MAX)

_ROWS: Final = (
    _Row(
        "temperature",
        Kind.FLOAT,
        Differs(Range(1e-6, open_low=True), Range(0.0, FLOAT32_MAX, open_low=True)),
        1.0,
        "randomness; below 1e-5, which the engine cannot divide by, greedy",
    ),
    _Row(
        "top_k",
        Kind.INT32,
        Differs(_POSITIVE_INT, Range(0, INT32_MAX)),
        DEFAULT_TOP_K,
        "candidates by rank; the model's generation_config comes before the default",
    ),
    _Row(
        "top_p",
        Kind.FLOAT,
        Differs(Range(1e-6, 1.0, open_low=True), Range(0.0, 1.0, open_low=True)),
        1.0,
        "candidates by cumulative probability",
    ),
    _Row("typical_p", Kind.FLOAT, Range(0.0, 1.0, open_low=True), None, "validated, no effect"),
    _Row("do_sample", Kind.BOOL, None, None, "false: greedy; true: sampling; absent: see below"),
    _Row(
        "seed",
        Kind.UINT64,
        Differs(Range(0, UINT64_MAX, open_low=True), Range(0, 2**63 - 1)),
        None,
        "same seed and request, same text; absent: random",
    ),
    _Row(
        "repetition_penalty",
        Kind.FLOAT,
        Range(0.0, open_low=True),
        1.0,
        "above 1 discourages, below 1 encourages repetition",
    ),
    _Row("watermark", Kind.BOOL, None, False, "validated, no effect"),
    _Row("priority", Kind.UINT64, Range(1, 5), 5, "engine scheduling priority, 1 highest"),
    _Row(
        "max_new_tokens",
        Kind.INT,
        _POSITIVE_INT,
        20,
        "new tokens at most; cut to max_iter_times and the room in the context",
    ),
    _Row("details", Kind.BOOL, None, False, "adds `details` and the times to each frame"),
    _Row("batch_size", Kind.INT, _POSITIVE_INT, Differs(1, None), "validated, no effect"),
    _Row(
        "timeout",
        Kind.UINT64,
        Differs(Range(0, 3600, open_low=True), Range(1, 65535)),
        Differs(600, 65535),
        "seconds to wait for the next token; non-stream routes: in total",
    ),
    _Row("firstTokenCost", Kind.UINT64, _ANY_UINT64, None, "validated, no effect", True),
    _Row("decodeTime", Kind.UINT64_LIST, _ANY_UINT64, None, "validated, no effect", True),
)


class _Behaviour(NamedTuple):
    """One difference that is not a parameter: the field of `Contract` it sets."""

    field: str
    topic: str
    values: Differs


BEHAVIOURS: Final = (
    _Behaviour(
        "text_limit",
        "text_input, UTF-16 code units (none: the body limit)",
        Differs(PAGE_TEXT_LIMIT, None),
    ),
    _Behaviour(
        "integer_times", "prefill_time, decode_time are truncated integers", Differs(False, True)
    ),
    _Behaviour(
        "unknown_finish",
        "finish_reason of an unknown end",
        Differs("invalid flag", "invalid finishReason"),
    ),
    _Behaviour(
        "end_on_last_token",
        "finish_reason of an end token on the last allowed token",
        Differs("eos_token", "length"),
    ),
    _Behaviour(
        "recompute_header_needed",
        "firstTokenCost, decodeTime are looked at only with header `is-recompute: true`",
        Differs(False, True),
    ),
    _Behaviour(
        "media_open_by_default",
        "media hosts allowed while the allow list is unset",
        Differs(False, True),
    ),
    _Behaviour(
        "raw_failure_text",
        "a failure after the first byte is raw text and a normal end",
        Differs(False, True),
    ),
    _Behaviour(
        "prune_deep",
        f"a container nested deeper than {MAX_NESTING} is dropped instead of refused",
        Differs(False, True),
    ),
    _Behaviour(
        "flush_tail",
        "a tail that ends inside a character is flushed as U+FFFD instead of lost",
        Differs(True, False),
    ),
)


@dataclass(frozen=True, slots=True)
class Contract:
    """One of the two contracts, ready to use."""

    name: ContractName
    parameters: tuple[Parameter, ...]
    text_limit: int | None
    integer_times: bool
    unknown_finish: str
    end_on_last_token: str
    recompute_header_needed: bool
    media_open_by_default: bool
    raw_failure_text: bool
    prune_deep: bool
    flush_tail: bool

    def parameter(self, name: str) -> Parameter:
        """The row of one parameter. Raises KeyError for an unknown name."""
        for row in self.parameters:
            if row.name == name:
                return row
        raise KeyError(name)


def _side(value: Any, contract: ContractName) -> Any:
    return getattr(value, contract) if isinstance(value, Differs) else value


def _build(contract: ContractName) -> Contract:
    rows = tuple(Parameter(*(_side(cell, contract) for cell in row)) for row in _ROWS)
    behaviours = {row.field: _side(row.values, contract) for row in BEHAVIOURS}
    return Contract(name=contract, parameters=rows, **behaviours)


DOCUMENTED: Final = _build("documented")
SERVER: Final = _build("server")
CONTRACTS: Final = {"documented": DOCUMENTED, "server": SERVER}

assert {field.name for field in fields(Contract)} == {
    "name",
    "parameters",
    *(row.field for row in BEHAVIOURS),
}


MAX_WORDS: Final = 64
"""Stop words, and bad words, of one request: each is matched at every token."""
MAX_WORD_LENGTH: Final = 1024
"""Characters of one of them."""
_WORDS: Final = f"string or list: up to {MAX_WORDS}, of {MAX_WORD_LENGTH} characters each; "


class DialectField(NamedTuple):
    """A top-level generation field of Triton and TensorRT-LLM clients (contract §3)."""

    name: str
    parameter: str | None
    """The twin under `parameters`, which wins."""
    range: Range | None
    zero_is_absent: bool
    meaning: str


DIALECT: Final = (
    DialectField("max_tokens", "max_new_tokens", _POSITIVE_INT, False, "new tokens at most"),
    DialectField("temperature", "temperature", Range(0.0), False, "0.0 means greedy"),
    DialectField("top_k", "top_k", Range(0, INT32_MAX), True, "0 is as if absent"),
    DialectField("top_p", "top_p", Range(0.0, 1.0), True, "0.0 is as if absent"),
    DialectField("stop_words", None, None, False, _WORDS + "they end the text"),
    DialectField("bad_words", None, None, False, _WORDS + "never generated"),
    DialectField("accumulate_tokens", None, None, False, "true: each frame has the text so far"),
)
DIALECT_TWINS: Final = {row.parameter: row for row in DIALECT if row.parameter is not None}
DIALECT_IGNORED: Final = ("stream", "end_id", "min_length")
